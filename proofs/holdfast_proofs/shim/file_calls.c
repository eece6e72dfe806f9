/* The calls that change files and names: number, look for room, call, log, act. */

/* A call that the disk has no room for. */
static int refused(struct point here) {
    leave(here, 1);
    return -1;
}

static int64_t place_to_write(int fd) {
    return fcntl(fd, F_GETFL) & O_APPEND ? size_of(fd) : lseek(fd, 0, SEEK_CUR);
}

/* Whether this sync is the one that fails. */
static int fails_now(struct point here) {
    if (!here.number || mode != SYNC_ERROR) return 0;
    if (__atomic_add_fetch(&trace->syncs, 1, __ATOMIC_SEQ_CST) != target) return 0;
    trace->acted = here.number;
    if (deadline_after) deadline = here.number + deadline_after - 1;
    errno = EIO;
    return 1;
}

ssize_t write(int fd, const void *bytes, size_t length) {
    REAL(ssize_t, write, int, const void *, size_t);
    struct point here = at_fd("write", fd, bytes, length);
    int64_t at = here.number ? place_to_write(fd) : 0;
    if (!room_to_write(here, fd, at, (int64_t)length)) return refused(here);
    ssize_t answer = real(fd, bytes, length);
    if (here.number) log_write(fd, bytes, answer, at);
    leave(here, answer < 0);
    return answer;
}

ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t offset) {
    REAL(ssize_t, pwrite64, int, const void *, size_t, off64_t);
    struct point here = at_fd("pwrite", fd, bytes, length);
    if (!room_to_write(here, fd, offset, (int64_t)length)) return refused(here);
    ssize_t answer = real(fd, bytes, length, offset);
    if (here.number) log_write(fd, bytes, answer, offset);
    leave(here, answer < 0);
    return answer;
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset) {
    return pwrite64(fd, bytes, length, offset);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(ssize_t, writev, int, const struct iovec *, int);
    struct point here = at_fd("writev", fd, NULL, 0);
    int64_t at = here.number ? place_to_write(fd) : 0, length = 0;
    for (int part = 0; part < count; part++) length += (int64_t)parts[part].iov_len;
    if (!room_to_write(here, fd, at, length)) return refused(here);
    ssize_t answer = real(fd, parts, count), left = answer;
    for (int part = 0; here.number && part < count && left > 0; part++) {
        ssize_t bytes = left < (ssize_t)parts[part].iov_len ? left : (ssize_t)parts[part].iov_len;
        log_write(fd, parts[part].iov_base, bytes, at);
        at += bytes;
        left -= bytes;
    }
    leave(here, answer < 0);
    return answer;
}

/* A sync that fails leaves its pages behind as clean: the real one is not even tried. */
#define SYNC(name)                                                                                 \
    REAL(int, name, int);                                                                          \
    char path[PATH_BYTES];                                                                         \
    struct point here = at_fd(#name, fd, NULL, 0);                                                 \
    const char *where = here.number && disk_log ? place_of_fd(fd, path, sizeof path) : NULL;       \
    uint64_t began = disk_used();                                                                  \
    int answer = fails_now(here) ? -1 : real(fd);                                                  \
    if (where) log_sync(fd, where, began, answer < 0);                                             \
    leave(here, answer < 0);                                                                       \
    return answer

int fsync(int fd) { SYNC(fsync); }

int fdatasync(int fd) { SYNC(fdatasync); }

int syncfs(int fd) {
    REAL(int, syncfs, int);
    WRAP(int, at_fd("syncfs", fd, NULL, 0), real(fd));
}

int ftruncate64(int fd, off64_t length) {
    REAL(int, ftruncate64, int, off64_t);
    struct point here = at_fd("ftruncate", fd, NULL, (size_t)length);
    if (!room_for_size(here, fd, length)) return refused(here);
    int answer = real(fd, length);
    if (here.number && answer == 0) log_size(fd, length);
    leave(here, answer < 0);
    return answer;
}

int ftruncate(int fd, off_t length) { return ftruncate64(fd, length); }

int fallocate64(int fd, int how, off64_t from, off64_t length) {
    REAL(int, fallocate64, int, int, off64_t, off64_t);
    struct point here = at_fd("fallocate", fd, NULL, (size_t)length);
    if (!room_to_write(here, fd, from, length)) return refused(here);
    int answer = real(fd, how, from, length);
    if (here.number && answer == 0) log_grown(fd, from + length);
    leave(here, answer < 0);
    return answer;
}

int fallocate(int fd, int how, off_t from, off_t length) {
    return fallocate64(fd, how, from, length);
}

int posix_fallocate64(int fd, off64_t from, off64_t length) {
    REAL(int, posix_fallocate64, int, off64_t, off64_t);
    struct point here = at_fd("fallocate", fd, NULL, (size_t)length);
    int answer = ENOSPC; /* an error number, not -1 */
    if (room_to_write(here, fd, from, length)) answer = real(fd, from, length);
    if (here.number && answer == 0) log_grown(fd, from + length);
    leave(here, answer != 0);
    return answer;
}

int posix_fallocate(int fd, off_t from, off_t length) {
    return posix_fallocate64(fd, from, length);
}

int fchmod(int fd, mode_t bits) {
    REAL(int, fchmod, int, mode_t);
    WRAP(int, at_fd("fchmod", fd, NULL, 0), real(fd, bits));
}

/* Names */

#define NAMED(name, folder, file)                                                                  \
    char path[PATH_BYTES];                                                                         \
    struct point here = at_path(name, folder, file);                                               \
    const char *where = here.number ? place_of_path(folder, file, path, sizeof path) : NULL

static uint64_t file_named(int folder, const char *file) {
    struct stat found;
    int kept = errno, known = fstatat(folder, file, &found, AT_SYMLINK_NOFOLLOW) == 0;
    errno = kept;
    return known ? found.st_ino : 0;
}

#define UNLINKED(folder, file, called)                                                             \
    NAMED("unlink", folder, file);                                                                 \
    int64_t freed = where ? held_by(folder, file) : 0;                                             \
    int answer = called;                                                                           \
    if (where && answer == 0) {                                                                    \
        give_room(freed);                                                                          \
        log_name(UNLINK, 0, where);                                                                \
    }                                                                                              \
    leave(here, answer < 0);                                                                       \
    return answer

int unlink(const char *file) {
    REAL(int, unlink, const char *);
    UNLINKED(AT_FDCWD, file, real(file));
}

int unlinkat(int folder, const char *file, int flags) {
    REAL(int, unlinkat, int, const char *, int);
    UNLINKED(folder, file, real(folder, file, flags));
}

#define RENAMED(from_folder, from, to_folder, to, called)                                          \
    char old_path[PATH_BYTES];                                                                     \
    NAMED("rename", to_folder, to);                                                                \
    int64_t freed = where ? held_by(to_folder, to) : 0;                                            \
    int answer = called;                                                                           \
    if (where && answer == 0) {                                                                    \
        give_room(freed);                                                                          \
        log_rename(place_of_path(from_folder, from, old_path, sizeof old_path), where);            \
    }                                                                                              \
    leave(here, answer < 0);                                                                       \
    return answer

int rename(const char *from, const char *to) {
    REAL(int, rename, const char *, const char *);
    RENAMED(AT_FDCWD, from, AT_FDCWD, to, real(from, to));
}

int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    REAL(int, renameat, int, const char *, int, const char *);
    RENAMED(from_folder, from, to_folder, to, real(from_folder, from, to_folder, to));
}

/* What is exchanged is numbered and not kept: nobody plays a loss of power over it. */
int renameat2(int from_folder, const char *from, int to_folder, const char *to,
              unsigned int flags) {
    REAL(int, renameat2, int, const char *, int, const char *, unsigned int);
    WRAP(int, at_path("rename", to_folder, to), real(from_folder, from, to_folder, to, flags));
}

int symlinkat(const char *target, int folder, const char *file) {
    REAL(int, symlinkat, const char *, int, const char *);
    WRAP(int, at_path("symlink", folder, file), real(target, folder, file));
}

#define LINKED(to_folder, to, called)                                                              \
    NAMED("link", to_folder, to);                                                                  \
    int answer = called;                                                                           \
    if (where && answer == 0) log_name(LINK, file_named(to_folder, to), where);                    \
    leave(here, answer < 0);                                                                       \
    return answer

int link(const char *from, const char *to) {
    REAL(int, link, const char *, const char *);
    LINKED(AT_FDCWD, to, real(from, to));
}

int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
    REAL(int, linkat, int, const char *, int, const char *, int);
    LINKED(to_folder, to, real(from_folder, from, to_folder, to, flags));
}

#define FOLDER_MADE(folder, file, called)                                                          \
    NAMED("mkdir", folder, file);                                                                  \
    if (!room_for_name(here)) return refused(here);                                                \
    int answer = called;                                                                           \
    if (where && answer == 0) log_name(FOLDER, 0, where);                                          \
    leave(here, answer < 0);                                                                       \
    return answer

int mkdir(const char *file, mode_t bits) {
    REAL(int, mkdir, const char *, mode_t);
    FOLDER_MADE(AT_FDCWD, file, real(file, bits));
}

int mkdirat(int folder, const char *file, mode_t bits) {
    REAL(int, mkdirat, int, const char *, mode_t);
    FOLDER_MADE(folder, file, real(folder, file, bits));
}

/* Opening counts where it may make a file. */

static struct point at_open(int folder, const char *file, int flags) {
    struct point nowhere = {0, 0, NULL};
    return flags & O_CREAT ? at_path("create", folder, file) : nowhere;
}

static void log_open(int fd, int folder, const char *file, int flags, int is_new) {
    char path[PATH_BYTES];
    if (fd < 0 || !disk_log) return;
    if (is_new) log_name(CREATE, file_of(fd), place_of_path(folder, file, path, sizeof path));
    if (flags & O_TRUNC && !is_new) log_size(fd, 0);
}

#define OPENED(folder, file, flags, ...)                                                     \
    mode_t bits = 0;                                                                               \
    if ((flags) & O_CREAT || ((flags) & O_TMPFILE) == O_TMPFILE) {                                 \
        va_list rest;                                                                              \
        va_start(rest, flags);                                                                     \
        bits = va_arg(rest, mode_t);                                                               \
        va_end(rest);                                                                              \
    }                                                                                              \
    struct point here = at_open(folder, file, flags);                                              \
    int is_new = here.number && !file_named(folder, file);                                         \
    if (is_new && !room_for_name(here)) return refused(here);                                      \
    int answer = real(__VA_ARGS__, flags, bits);                                                   \
    if (here.number) log_open(answer, folder, file, flags, is_new);                                \
    leave(here, answer < 0);                                                                       \
    return answer

int open64(const char *file, int flags, ...) {
    REAL(int, open64, const char *, int, ...);
    OPENED(AT_FDCWD, file, flags, file);
}

int open(const char *file, int flags, ...) {
    REAL(int, open, const char *, int, ...);
    OPENED(AT_FDCWD, file, flags, file);
}

int openat64(int folder, const char *file, int flags, ...) {
    REAL(int, openat64, int, const char *, int, ...);
    OPENED(folder, file, flags, folder, file);
}

int openat(int folder, const char *file, int flags, ...) {
    REAL(int, openat, int, const char *, int, ...);
    OPENED(folder, file, flags, folder, file);
}

/* How much room there is, as the caller is to see it. */

#define ROOM_SHOWN()                                                                               \
    if (answer == 0 && armed() && is_full()) {                                                     \
        found->f_bavail = found->f_bfree = (unsigned long)trace->room / found->f_frsize;           \
    }                                                                                              \
    return answer

int statvfs(const char *file, struct statvfs *found) {
    REAL(int, statvfs, const char *, struct statvfs *);
    int answer = real(file, found);
    ROOM_SHOWN();
}

int statvfs64(const char *file, struct statvfs64 *found) {
    REAL(int, statvfs64, const char *, struct statvfs64 *);
    int answer = real(file, found);
    ROOM_SHOWN();
}

int fstatvfs(int fd, struct statvfs *found) {
    REAL(int, fstatvfs, int, struct statvfs *);
    int answer = real(fd, found);
    ROOM_SHOWN();
}

int fstatvfs64(int fd, struct statvfs64 *found) {
    REAL(int, fstatvfs64, int, struct statvfs64 *);
    int answer = real(fd, found);
    ROOM_SHOWN();
}

