/* What the user's own programs obey without being asked, and so what no command may plant.
 *
 * The rules come from the controller (environments/local/planted.py), one a line, a letter and a pattern:
 *   w  a directory that is guarded        n  a name that nothing may have, at any depth
 *   e  a path, at any depth               s  the same, but not within u
 *   u  a directory that packages are unpacked in
 *   U  a path from the top within such a one, which a link from elsewhere leads to: somebody works there after all
 *   r  a path at a root: a guarded directory, or one that holds a .git
 *   m  a path from the top that is read-only as a whole; p  one that another file names
 *   g  inside a git directory: what git writes itself; G  but not this
 *   d  a directory (`/bin` from the top, `bin` at any depth) that shells search: no program is made there as in
 *   D  a directory outside, which they search later; but x  a path at any depth
 *   f  a name that is no pipe's, which git would wait for
 * A pattern is compared component by component, whatever the case of letters, and holds for all below it. In a git
 * directory what no g allows is refused; NAME.lock is NAME. A git directory is told as git tells one, so that a bare one
 * is found, and no directory may become one: git obeys its config at the next prompt.
 *
 * Nothing is remembered from one call to the next, but for what links were made to: the user, and other sessions, change
 * the tree meanwhile. */
#include "guard.h"

#include <fnmatch.h>
#include <linux/openat2.h>
#include <sys/file.h>
#include <sys/syscall.h>

enum { MAX_RULES = 4096 };
enum match { APART, ABOVE, WITHIN };

static struct rule {
    char letter;
    char *pattern;
} rules[MAX_RULES];
static int rule_count;
static char *text_of_rules;
static bool turn_taken;

int planted_rules(const char *text, size_t size) {
    char *rest = text_of_rules = strndup(text, size), *line;
    if (!rest)
        return ENOMEM;
    while ((line = strsep(&rest, "\n"))) {
        if (!*line)
            continue;
        if (rule_count == MAX_RULES || !strchr("wnesuUrmpgGdDxf", line[0]) || line[1] != ' ')
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

/* How much of `directory`, guarded from `top` on, is the innermost git directory; 0 outside of any. */
static size_t git_part(const char *directory, size_t top) {
    char path[PATH_MAX];
    size_t part = 0;
    snprintf(path, sizeof path, "%s", directory);
    for (char *slash = path + top;; slash = slash + 1 + strcspn(slash + 1, "/")) {
        char kept = *slash;
        *slash = 0;
        if ((slash > path + top && named_as_git(strrchr(path, '/') + 1)) || git_directory(path))
            part = slash - path;
        *slash = kept;
        if (!kept)
            return part;
    }
}

static bool brings_more(enum change change) {
    return change == MOVED_DIRECTORY || change == MADE_LINK; /* what is below it, or where it leads */
}

static bool obeyed_in_git(const char *inside, enum change change) {
    return brings_more(change) || change == MADE_PIPE || matches('G', inside, false) || !matches('g', inside, false);
}

static bool obeyed_by_name(char *path, size_t top, enum change change) {
    bool whole = brings_more(change), unpacked = false, worked = matches('U', path + top + 1, false);
    if ((change == MADE_LINK && matches('U', path + top + 1, true)) || matches('m', path + top + 1, whole) || matches('p', path + top + 1, whole))
        return true;
    for (char *slash = path + top; slash; slash = strchr(slash + 1, '/')) {
        bool last = !strchr(slash + 1, '/');
        if (matches('e', slash + 1, whole) || (!unpacked && matches('s', slash + 1, whole)) ||
            (change != REMOVED && last && matches('n', slash + 1, false)) ||
            (change == MADE_PIPE && last && matches('f', slash + 1, false)))
            return true;
        unpacked |= !worked && matches('u', slash + 1, false);
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

static int parts(const char *path) {
    int count = 1;
    while ((path = strchr(path, '/')))
        path++, count++;
    return count;
}

/* Whether a path is a directory that shells search (of `/bin` the one at the top, of `bin` any that ends so), or with
 * `whole` could be lengthened to one. */
static bool searched(const char *path, bool whole) {
    for (int i = 0; i < rule_count; i++) {
        if (rules[i].letter != 'd' || (whole && !strcmp(rules[i].pattern, "*")))
            continue;
        bool top = *rules[i].pattern == '/';
        const char *pattern = rules[i].pattern + top;
        for (const char *rest = path; rest; rest = top ? NULL : strchr(rest, '/'), rest += rest != NULL) {
            enum match match = compare(pattern, rest);
            if ((whole && match == ABOVE) || (match == WITHIN && parts(rest) == parts(pattern)))
                return true;
        }
    }
    return false;
}

/* A program that a shell would find instead of the one that is meant. */
static bool shadows(const char *directory, const char *name, const char *path, enum change change) {
    if (brings_more(change) && searched(path, true))
        return true;
    if (change == MADE_DIRECTORY || change == WRITTEN || !searched(directory, false) || matches('x', path, false))
        return false;
    for (int i = 0; i < rule_count; i++)
        if (rules[i].letter == 'D' && has(rules[i].pattern, name))
            return true;
    return false;
}

/* Two sessions could each make the half of a bare repository, or move a directory that the other has just judged. What
 * depends on more than one name is therefore judged and made by one session at a time: the lock is given back when the
 * call has been made. No command can take it (environments/local/workspace.py). */
static void take_turn(const char *name, enum change change) {
    bool part = !strcasecmp(name, "HEAD") || !strcasecmp(name, "objects") || !strcasecmp(name, "refs") ||
                !strcasecmp(name, "commondir");
    if (turn_taken || (!part && !brings_more(change)))
        return;
    while (flock(TURNS_FD, LOCK_EX) && errno == EINTR)
        ;
    turn_taken = true;
}

void planted_done(void) {
    if (turn_taken)
        flock(TURNS_FD, LOCK_UN);
    turn_taken = false;
}

static bool passes_packages(const char *path) {
    for (const char *part = path; part; part = strchr(part, '/'), part += part != NULL)
        if (matches('u', part, false))
            return true;
    return false;
}

bool planted_unpacked(const char *directory, const char *name, bool whole) {
    char path[PATH_MAX + NAME_MAX + 2];
    size_t top = guarded_length(directory);
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return !top || (passes_packages(path + top + 1) && !matches('U', path + top + 1, whole));
}

bool planted_leads(const struct place *link, const char *text, const char **shown) {
    static char path[PATH_MAX + NAME_MAX + 2];
    char file[PATH_MAX], way[40];
    struct open_how how = {.flags = O_PATH | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS};
    struct stat info;
    if (planted_unpacked(link->path, link->name, false) || !passes_packages(text))
        return false;
    snprintf(path, sizeof path, "%s/%s", link->path, link->name);
    *shown = path + guarded_length(path) + 1;
    int fd = syscall(SYS_openat2, link->directory, text, &how, sizeof how);
    snprintf(way, sizeof way, "/proc/self/fd/%d", fd);
    ssize_t length = fd >= 0 && !fstat(fd, &info) && S_ISREG(info.st_mode) ? readlink(way, file, sizeof file - 1) : -1;
    if (fd >= 0)
        close(fd);
    file[length > 0 ? length : 0] = 0;
    size_t top = guarded_length(file);
    if (length > 0 && (!top || matches('U', file + top + 1, false)))
        return false;
    char *pattern = length <= 0 || strpbrk(file, "*?[") || rule_count == MAX_RULES ? NULL : strdup(file + top + 1);
    if (pattern)
        rules[rule_count++] = (struct rule){'U', pattern}; /* nor is it, when it has become a directory */
    return !pattern;
}

bool planted(const char *directory, const char *name, enum change change, const char **shown) {
    static char path[PATH_MAX + NAME_MAX + 2];
    size_t top = guarded_length(directory);
    if (!top)
        return false;
    take_turn(name, change);
    snprintf(path, sizeof path, "%s/%s", directory, name);
    *shown = path + top + 1;
    size_t git = git_part(directory, top), length = strlen(path);
    for (; git && length > git + 6 && !strcmp(path + length - 5, ".lock"); length -= 5)
        path[length - 5] = 0; /* git makes a file under this name, and gives it the one before when it is whole */
    if (change == REMOVED)
        return !git && obeyed_by_name(path, top, change);
    if (change != WRITTEN && git != strlen(directory) && completes_git_directory(directory, name))
        return true;
    if (git && obeyed_in_git(path + git + 1, change))
        return true;
    if (shadows(directory + top + (directory[top] == '/'), name, path + top + 1, change))
        return true;
    if (!obeyed_by_name(path, top, change))
        return false;
    if (git && !matches('p', path + top + 1, brings_more(change)))
        *shown = NULL; /* what git writes itself, in a directory that is held as a whole: git does without it */
    return true;
}
