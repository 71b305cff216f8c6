/* What the user's own programs obey without being asked, and so what no command may plant.
 *
 * The rules come from the controller (environments/local/planted.py), one a line, a letter and a pattern:
 *   w  a directory that is guarded        n  a name that nothing may have, at any depth
 *   e  a path, at any depth               r  a path at a root: a guarded directory, or one that holds a .git
 *   p  a path from the top                g  inside a git directory: what git writes itself; G  but not this
 * A pattern is compared component by component, whatever the case of letters, and holds for all below it. In a git
 * directory what no g allows is refused; NAME.lock is NAME. A git directory is told as git tells one, so that a bare one is found, and no
 * directory may become one: git obeys its config at the next prompt. */
#include "guard.h"

#include <fnmatch.h>
#include <time.h>

enum { MAX_RULES = 256 };
enum match { APART, ABOVE, WITHIN };

static struct rule {
    char letter;
    char *pattern;
} rules[MAX_RULES];
static int rule_count;
static char *text_of_rules;
static bool moved_directories; /* so that a path may mean another one */

int planted_rules(const char *text, size_t size) {
    char *rest = text_of_rules = strndup(text, size), *line;
    if (!rest)
        return ENOMEM;
    while ((line = strsep(&rest, "\n"))) {
        if (!*line)
            continue;
        if (rule_count == MAX_RULES || !strchr("wnerpgG", line[0]) || line[1] != ' ')
            return EINVAL;
        rules[rule_count++] = (struct rule){line[0], line + 2};
    }
    return rule_count ? 0 : EINVAL;
}

/* ABOVE: the path ends before the pattern does. */
static enum match compare(const char *pattern, const char *path) {
    char one[NAME_MAX + 1], other[NAME_MAX + 1];
    if (*pattern != '*' && (*pattern | 0x20) != (*path | 0x20) && *pattern != '[')
        return APART; /* most of the time */
    for (;;) {
        size_t size = strcspn(pattern, "/"), length = strcspn(path, "/");
        if (size > NAME_MAX || length > NAME_MAX)
            return APART;
        snprintf(one, sizeof one, "%.*s", (int)size, pattern);
        snprintf(other, sizeof other, "%.*s", (int)length, path);
        if (fnmatch(one, other, FNM_CASEFOLD | FNM_NOESCAPE))
            return APART;
        pattern += size, path += length;
        if (!*pattern)
            return WITHIN;
        if (!*path)
            return ABOVE;
        pattern++, path++;
    }
}

static bool matches(char letter, const char *path, bool whole) {
    for (int i = 0; i < rule_count; i++)
        if (rules[i].letter == letter) {
            enum match match = compare(rules[i].pattern, path);
            if (match == WITHIN || (whole && match == ABOVE))
                return true;
        }
    return false;
}

static bool has(const char *directory, const char *name) {
    char path[PATH_MAX];
    return snprintf(path, sizeof path, "%s/%s", directory, name) < (int)sizeof path &&
           !faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW);
}

static bool named_as_git(const char *name) {
    return !fnmatch(".git", name, FNM_CASEFOLD) || !fnmatch("git~[0-9]", name, FNM_CASEFOLD);
}

/* As git's own is_git_directory, but for what HEAD says. */
static bool git_directory(const char *directory) {
    return has(directory, "HEAD") &&
           (has(directory, "commondir") || (has(directory, "objects") && has(directory, "refs")));
}

static bool completes_git_directory(const char *directory, const char *name) {
    bool head = !strcasecmp(name, "HEAD"), objects = !strcasecmp(name, "objects"), refs = !strcasecmp(name, "refs"),
         common = !strcasecmp(name, "commondir");
    if (!head && !objects && !refs && !common)
        return false;
    return (head || has(directory, "HEAD")) &&
           (common || has(directory, "commondir") ||
            ((objects || has(directory, "objects")) && (refs || has(directory, "refs"))));
}

static size_t guarded_length(const char *directory) {
    for (int i = 0; i < rule_count; i++) {
        size_t length = strlen(rules[i].pattern);
        if (rules[i].letter == 'w' && !strncmp(directory, rules[i].pattern, length) &&
            (!directory[length] || directory[length] == '/'))
            return length;
    }
    return 0;
}

/* How much of `directory`, guarded from `top` on, is the innermost git directory; 0 outside of any. What was found is
 * kept for the next name there, for a moment: no command makes a git directory, but the user may. */
static size_t git_part(const char *directory, size_t top) {
    static char known[PATH_MAX];
    static size_t part;
    static time_t since;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    if (now.tv_sec == since && !moved_directories && !strcmp(known, directory))
        return part;
    snprintf(known, sizeof known, "%s", directory);
    since = now.tv_sec;
    moved_directories = false;
    part = 0;
    for (char *slash = known + top;; slash = slash + 1 + strcspn(slash + 1, "/")) {
        char kept = *slash;
        *slash = 0;
        if ((slash > known + top && named_as_git(strrchr(known, '/') + 1)) || git_directory(known))
            part = slash - known;
        *slash = kept;
        if (!kept)
            return part;
    }
}

static bool obeyed_in_git(const char *inside, enum change change) {
    return change == MOVED_DIRECTORY || change == MADE_LINK || matches('G', inside, false) ||
           !matches('g', inside, false);
}

static bool obeyed_by_name(char *path, size_t top, enum change change) {
    bool whole = change == MOVED_DIRECTORY || change == MADE_LINK; /* it brings along what is below it, or leads there */
    if (matches('p', path + top + 1, whole))
        return true;
    for (char *slash = path + top; slash; slash = strchr(slash + 1, '/')) {
        if (matches('e', slash + 1, whole) || (change != REMOVED && !strchr(slash + 1, '/') && matches('n', slash + 1, false)))
            return true;
        if (!matches('r', slash + 1, whole))
            continue;
        *slash = 0;
        bool root = slash == path + top || has(path, ".git");
        *slash = '/';
        if (root)
            return true;
    }
    return false;
}

bool planted(const char *directory, const char *name, enum change change, const char **shown) {
    static char path[PATH_MAX + NAME_MAX + 2];
    size_t top = guarded_length(directory);
    if (!top)
        return false;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    *shown = path + top + 1;
    size_t git = git_part(directory, top), length = strlen(path);
    if (git && length > git + 6 && !strcmp(path + length - 5, ".lock"))
        path[length - 5] = 0; /* git makes a file under this name, and gives it the one before when it is whole */
    moved_directories |= change == MOVED_DIRECTORY;
    if (change == REMOVED)
        return !git && obeyed_by_name(path, top, change);
    if (change != WRITTEN && git != strlen(directory) && completes_git_directory(directory, name))
        return true;
    if (git && obeyed_in_git(path + git + 1, change))
        return true;
    if (!obeyed_by_name(path, top, change))
        return false;
    if (git)
        *shown = NULL; /* what git writes itself, in a directory that is held as a whole: git does without it */
    return true;
}
