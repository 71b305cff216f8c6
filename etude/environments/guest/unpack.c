/* Unpacking a tar, as the sandbox's own user and in its own view.
 *
 * It never leaves the directory it is given: names are checked before anything is written, and every directory on the
 * way is opened with RESOLVE_BENEATH, so that not even a symlink that a command swaps in meanwhile leads out. Links are
 * made as they are, wherever they point; they are never followed outside.
 *
 * Body: path, NUL, tar. Where it fails, the body of the answer is the name of the member it failed at. */
#include "guest.h"
#include "tar.h"

#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>

enum { PAGE = 4096 };

/* Directories get their mode and time when all is inside them: one that may not be written would refuse its files. */
struct finished {
    struct finished *before;
    mode_t mode;
    int64_t modified;
    char name[];
};

static int open_beneath(int root, const char *path, uint64_t flags) {
    struct open_how how = {.flags = flags | O_CLOEXEC, .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    int fd = syscall(SYS_openat2, root, *path ? path : ".", &how, sizeof how);
    if (fd < 0 && (errno == EXDEV || errno == ELOOP))
        errno = EPERM;
    return fd;
}

/* Without a leading "./" and trailing slashes; "" for the directory itself. EPERM where the name leads outside. */
static int clean(char **name) {
    char *text = *name;
    while (text[0] == '.' && (text[1] == '/' || !text[1]))
        text += text[1] ? 2 : 1;
    bool leaves = *text == '/';
    for (const char *part = text; part && !leaves; part = strchr(part, '/'), part = part ? part + 1 : NULL)
        leaves = part[0] == '.' && part[1] == '.' && (part[2] == '/' || !part[2]);
    size_t length = strlen(text);
    while (length && text[length - 1] == '/')
        text[--length] = 0;
    *name = text;
    return leaves ? (errno = EPERM, -1) : 0;
}

/* Opens the directory that holds `name`, made where it is not there; `*last` becomes the name's last part. */
static int open_parent(int root, char *name, char **last, bool make) {
    char *slash = strrchr(name, '/');
    *last = slash ? slash + 1 : name;
    if (!slash)
        return open_beneath(root, "", O_PATH | O_DIRECTORY);
    *slash = 0;
    int fd = open_beneath(root, name, O_PATH | O_DIRECTORY);
    if (fd < 0 && errno == ENOENT && make) {
        char *part;
        int above = open_parent(root, name, &part, true);
        if (above >= 0) {
            if (mkdirat(above, part, 0755) == 0 || errno == EEXIST)
                fd = open_beneath(root, name, O_PATH | O_DIRECTORY);
            close(above);
        }
    }
    *slash = '/';
    return fd;
}

/* Pages of zeros become holes, as which a sparse file had them: it must not take more room here than where it was. */
static int write_all(int fd, const char *data, size_t size) {
    static const char zeros[PAGE];
    for (size_t at = 0; at < size;) {
        size_t length = 0;
        while (length < size - at && (size - at - length < PAGE || memcmp(data + at + length, zeros, PAGE)))
            length += size - at - length < PAGE ? size - at - length : PAGE;
        for (size_t done = 0; done < length;) {
            ssize_t put = pwrite(fd, data + at + done, length - done, at + done);
            if (put < 0 && errno != EINTR)
                return -1;
            done += put > 0 ? put : 0;
        }
        at += length;
        while (size - at >= PAGE && !memcmp(data + at, zeros, PAGE))
            at += PAGE;
    }
    return ftruncate(fd, size);
}

static int set_mode_and_time(int fd, mode_t mode, int64_t modified) {
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = modified}};
    return fchmod(fd, mode & 0777) || futimens(fd, times) ? -1 : 0;
}

static int make_file(int parent, const char *name, const struct member *member) {
    int fd = openat(parent, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return -1;
    int status = write_all(fd, member->data, member->size) || set_mode_and_time(fd, member->mode, member->modified);
    close(fd);
    return status;
}

static int make_symlink(int parent, const char *name, const struct member *member) {
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = member->modified}};
    if (symlinkat(member->target, parent, name))
        return -1;
    return utimensat(parent, name, times, AT_SYMLINK_NOFOLLOW);
}

static int make_hard_link(int root, int parent, const char *name, struct member *member) {
    char *last;
    int from = open_parent(root, member->target, &last, false);
    int status = from < 0 ? -1 : linkat(from, last, parent, name, 0);
    if (from >= 0)
        close(from);
    return status;
}

static int make_directory(int root, int parent, const char *name, const struct member *member,
                          struct finished **finished) {
    if (mkdirat(parent, name, 0700) && errno != EEXIST)
        return -1;
    int fd = open_beneath(root, member->name, O_PATH | O_DIRECTORY); /* is one, and not a link to one elsewhere */
    if (fd < 0)
        return -1;
    close(fd);
    size_t length = strlen(member->name) + 1;
    struct finished *entry = malloc(sizeof *entry + length);
    if (!entry)
        return -1;
    *entry = (struct finished){*finished, member->mode, member->modified};
    memcpy(entry->name, member->name, length);
    *finished = entry;
    return 0;
}

static int make_member(int root, struct member *member, struct finished **finished) {
    char *last;
    if (clean(&member->name) || (member->type == '1' && clean(&member->target)))
        return -1;
    if (!*member->name)
        return 0; /* the directory we unpack into */
    bool itself = member->type == '1' && !strcmp(member->name, member->target);
    int parent = itself ? -1 : open_parent(root, member->name, &last, true), status;
    if (parent < 0)
        return itself ? 0 : -1;
    if (member->type != '5' && unlinkat(parent, last, 0) && errno != ENOENT)
        status = -1;
    else if (member->type == '5')
        status = make_directory(root, parent, last, member, finished);
    else if (member->type == '2')
        status = make_symlink(parent, last, member);
    else if (member->type == '1')
        status = make_hard_link(root, parent, last, member);
    else
        status = make_file(parent, last, member);
    int error = errno;
    close(parent);
    errno = error;
    return status;
}

static int check(struct tar_reader *reader, struct member *member) {
    int got;
    while ((got = tar_next(reader, member)) > 0) {
        if (!strchr("01257", member->type))
            return errno = ENOTSUP, -1;
        if (clean(&member->name) || (member->type == '1' && clean(&member->target)))
            return -1;
    }
    return got;
}

static int finish(int root, struct finished *finished) {
    int status = 0, error = 0;
    for (struct finished *before; finished; finished = before) {
        before = finished->before;
        int fd = status ? -1 : open_beneath(root, finished->name, O_RDONLY | O_DIRECTORY);
        if (!status && (fd < 0 || set_mode_and_time(fd, finished->mode, finished->modified)))
            status = -1, error = errno;
        if (fd >= 0)
            close(fd);
        free(finished);
    }
    errno = error;
    return status;
}

void unpack(const struct request *request) {
    size_t skip = strlen(request->body) + 1;
    if (skip > request->size)
        return reply(request->id, EINVAL, NULL, 0);
    struct tar_reader reader = {.data = request->body + skip, .size = request->size - skip};
    struct member member = {.name = ""};
    struct finished *finished = NULL;
    int root = -1, got, status = check(&reader, &member) ? errno : 0;
    if (!status) {
        reader.at = 0;
        member.name = "";
        status = make_parents(request->body);
        if (!status && mkdir(request->body, 0755) && errno != EEXIST)
            status = errno;
        root = status ? -1 : open(request->body, O_PATH | O_DIRECTORY | O_CLOEXEC);
        while (root >= 0 && !status && (got = tar_next(&reader, &member)))
            if (got < 0 || make_member(root, &member, &finished))
                status = errno;
        if (root < 0 && !status)
            status = errno;
        if (finish(root, finished) && !status)
            status = errno;
    }
    const char *at = reader.name ? reader.name : "";
    reply(request->id, status, &(struct piece){at, status ? strlen(at) : 0}, 1);
    tar_done(&reader);
    if (root >= 0)
        close(root);
}
