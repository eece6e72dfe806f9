/* The crash shim: every call that can change durable or outside state passes here first.
 *
 * Loaded with LD_PRELOAD. While armed it numbers, in the armed process only,
 *
 *   - writes, syncs, sizes, names and folders of files under `root`,
 *   - connect, send, receive, shutdown and close of Internet sockets, and of Unix sockets that have
 *     a path at their other end (a database server),
 *
 * notes each in a trace that outlives the process (shared memory or a mapped file), and at the
 * call with the armed number
 *
 *   - ends or stops the process, before or after the call itself: the signal is sent to the own
 *     process and SIGKILL cannot be caught, so nothing runs after it;
 *   - or lets the disk be full from there on (disk_room.c);
 *   - or, counting syncs alone, lets that sync fail once with EIO;
 *   - or cuts the connection to a database at that commit: it is lost, or arrives and its answer is
 *     lost, or arrives later, when it is long given up.
 *
 * Lives that wait for a server differ by a few calls. So the number may count only calls of one
 * kind, such as "commit database".
 *
 * With a disk log (disk_log.c) it keeps what is written, for those who play a loss of power.
 *
 * Not seen: stores into mappings (SQLite's shared-memory index, which a resumer makes anew),
 * locks, and calls that a program makes without the C library. Nothing is allocated and no lock is
 * taken here, so it is safe in every thread and after fork.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum mode {
    OFF, TRACE, KILL_BEFORE, KILL_AFTER, STOP_BEFORE, STOP_AFTER, SYNC_ERROR, FULL, FULL_ANY,
    CUT_LOST, CUT_REPLY, CUT_LATE
};

/* The layout of the trace is read by shim/__init__.py. */
#define NAME_BYTES 16
#define HEAD_BYTES 8
#define WHERE_BYTES 88

struct call {
    char name[NAME_BYTES];
    unsigned char head[HEAD_BYTES]; /* the first bytes that were written, to tell writes apart */
    int64_t length;
    int32_t done; /* 1 once the call itself has returned */
    int16_t failed;
    int16_t phase; /* of the disk, when the call began */
    char where[WHERE_BYTES]; /* path below the root, "socket" or "database" */
};

struct trace {
    uint32_t capacity;
    uint32_t count; /* calls so far; those beyond the capacity are counted but not kept */
    uint32_t acted; /* the number of the armed call once it was reached */
    uint32_t phase; /* of the disk; the parent sets the last one */
    int64_t room;   /* bytes, while the disk is full */
    uint32_t syncs; /* so far */
    uint32_t turns; /* calls of the kind that counts */
    uint32_t unused[8];
    struct call calls[];
};

enum phase { PHASE_WHOLE, PHASE_FULL, PHASE_ROOM_AGAIN };

static struct trace *trace;
static volatile int mode = OFF;
static uint32_t target;
static char kind[48]; /* a call's name and place; empty: the number counts all calls */
static uint32_t deadline, deadline_after; /* after a sync error: the last call, and how far off */
static pid_t owner;
static char root[512];
static size_t root_bytes;

#include "disk_log.c"

/* Arming */

/* `then`: after a sync error the process is killed at the then-th call, which the failed one is
 * the first of; 0: never. `disk`: where to log, or NULL. */
void hf_shim_arm(struct trace *kept, struct disk_log *disk, int wanted, uint32_t at, uint32_t then,
                 const char *below, const char *counted) {
    mode = OFF;
    trace = kept;
    disk_log = disk;
    target = at;
    deadline = 0;
    deadline_after = then;
    owner = getpid();
    snprintf(kind, sizeof kind, "%s", counted);
    root_bytes = strnlen(below, sizeof root - 1);
    memcpy(root, below, root_bytes);
    root[root_bytes] = 0;
    trace->count = 0;
    trace->acted = 0;
    trace->syncs = trace->turns = 0;
    trace->room = 0;
    trace->phase = PHASE_WHOLE;
    if (disk) disk_note((struct entry){.kind = LIFE}, NULL, 0);
    mode = wanted;
}

void hf_shim_disarm(void) { mode = OFF; }

/* For programs that are started, not forked: HOLDFAST_SHIM_TRACE names a file of the trace's size. */
__attribute__((constructor)) static void arm_from_environment(void) {
    const char *file = getenv("HOLDFAST_SHIM_TRACE"), *below = getenv("HOLDFAST_SHIM_ROOT");
    const char *wanted = getenv("HOLDFAST_SHIM_MODE"), *at = getenv("HOLDFAST_SHIM_AT");
    struct stat found;
    if (!file || !below || !wanted || !at) return;
    int fd = open(file, O_RDWR | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &found) || (size_t)found.st_size < sizeof(struct trace)) return;
    void *kept = mmap(NULL, (size_t)found.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (kept == MAP_FAILED) return;
    ((struct trace *)kept)->capacity =
        (uint32_t)(((size_t)found.st_size - sizeof(struct trace)) / sizeof(struct call));
    /* A program of the program is not the one that was meant. */
    unsetenv("HOLDFAST_SHIM_TRACE");
    hf_shim_arm(kept, NULL, atoi(wanted), (uint32_t)strtoul(at, NULL, 10), 0, below, "");
}

/* Numbering */

struct point {
    uint32_t number; /* 0: not counted */
    uint32_t turn;   /* what is compared with the armed number */
    struct call *call;
};

static void act(struct point here, int kills, int stops) {
    if (here.turn != target || (mode != kills && mode != stops)) return;
    trace->acted = here.number;
    raise(mode == kills ? SIGKILL : SIGSTOP); /* to this thread: it does not run on */
}

static void fill_disk(uint32_t number) {
    if (number != target || (mode != FULL && mode != FULL_ANY)) return;
    trace->acted = number;
    trace->phase = PHASE_FULL;
}

static uint32_t turn_of(uint32_t number, const char *name, const char *where) {
    char own[sizeof kind];
    if (!kind[0]) return number;
    snprintf(own, sizeof own, "%s %s", name, where);
    return strcmp(own, kind) == 0 ? __atomic_add_fetch(&trace->turns, 1, __ATOMIC_SEQ_CST) : 0;
}

static struct point enter(const char *name, const char *where, const void *bytes, size_t length) {
    struct point here = {0, 0, NULL};
    here.number = __atomic_add_fetch(&trace->count, 1, __ATOMIC_SEQ_CST);
    here.turn = turn_of(here.number, name, where);
    fill_disk(here.number);
    if (here.number <= trace->capacity) {
        here.call = &trace->calls[here.number - 1];
        memset(here.call, 0, sizeof *here.call);
        strncpy(here.call->name, name, NAME_BYTES - 1);
        strncpy(here.call->where, where, WHERE_BYTES - 1);
        here.call->length = (int64_t)length;
        here.call->phase = (int16_t)trace->phase;
        if (bytes) memcpy(here.call->head, bytes, length < HEAD_BYTES ? length : HEAD_BYTES);
    }
    act(here, KILL_BEFORE, STOP_BEFORE);
    return here;
}

static void leave(struct point here, int failed) {
    if (!here.number) return;
    int kept = errno;
    if (here.call) {
        here.call->failed = failed;
        here.call->done = 1;
    }
    act(here, KILL_AFTER, STOP_AFTER);
    if (deadline && here.number >= deadline) raise(SIGKILL);
    errno = kept;
}

static int armed(void) { return mode != OFF && getpid() == owner; }

/* The part of the path below the root, or NULL. */
static const char *below_root(const char *path) {
    if (strncmp(path, root, root_bytes) != 0) return NULL;
    if (path[root_bytes] == 0) return ".";
    return path[root_bytes] == '/' ? path + root_bytes + 1 : NULL;
}

static const char *place_of_fd(int fd, char *path, size_t size) {
    char link[40];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, size - 1);
    if (length < 0) return NULL;
    path[length] = 0;
    return below_root(path);
}

static const char *place_of_path(int folder, const char *name, char *path, size_t size) {
    if (name[0] == '/') return below_root(name);
    ssize_t length;
    if (folder == AT_FDCWD) {
        length = readlink("/proc/self/cwd", path, size - 1);
    } else {
        char link[40];
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        length = readlink(link, path, size - 1);
    }
    if (length < 0) return NULL;
    snprintf(path + length, size - (size_t)length, "/%s", name);
    return below_root(path);
}

#define PATH_BYTES 4096

static struct point at_fd(const char *name, int fd, const void *bytes, size_t length) {
    struct point nowhere = {0, 0, NULL};
    char path[PATH_BYTES];
    if (!armed()) return nowhere;
    int kept = errno;
    const char *where = place_of_fd(fd, path, sizeof path);
    errno = kept;
    return where ? enter(name, where, bytes, length) : nowhere;
}

static struct point at_path(const char *name, int folder, const char *file) {
    struct point nowhere = {0, 0, NULL};
    char path[PATH_BYTES];
    if (!armed() || !file) return nowhere;
    int kept = errno;
    const char *where = place_of_path(folder, file, path, sizeof path);
    errno = kept;
    return where ? enter(name, where, NULL, 0) : nowhere;
}

/* What is at the other end: "socket" for the Internet, "database" for a path, or NULL. */
static const char *place_of_socket(int fd) {
    struct sockaddr_un peer;
    int domain = 0;
    socklen_t size = sizeof domain, length = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size)) return NULL;
    if (domain == AF_INET || domain == AF_INET6) return "socket";
    if (domain != AF_UNIX || getpeername(fd, (struct sockaddr *)&peer, &length)) return NULL;
    return length > sizeof peer.sun_family && peer.sun_path[0] ? "database" : NULL;
}

static struct point at_socket(const char *name, int fd, const void *bytes, size_t length) {
    struct point nowhere = {0, 0, NULL};
    int kept = errno;
    if (!armed()) return nowhere;
    const char *where = place_of_socket(fd);
    errno = kept;
    return where ? enter(name, where, bytes, length) : nowhere;
}

/* The calls. Each is: find the next definition once, number, call, act. */

#define REAL(result, name, ...)                                                                    \
    static result (*real)(__VA_ARGS__);                                                            \
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name)

#define WRAP(result, numbered, called)                                                             \
    struct point here = numbered;                                                                  \
    result answer = called;                                                                        \
    leave(here, answer < 0);                                                                       \
    return answer

#include "disk_room.c"
#include "file_calls.c"

/* Sockets */

int connect(int fd, const struct sockaddr *to, socklen_t length) {
    REAL(int, connect, int, const struct sockaddr *, socklen_t);
    WRAP(int, at_socket("connect", fd, NULL, 0), real(fd, to, length));
}

#define LATE_MS 600

/* COMMIT as a statement of its own, or the one statement of an append, which is its own commit. */
static int is_commit(const char *bytes, size_t length) {
    if (length < 16) return length > 11 && bytes[0] == 'Q' && memcmp(bytes + 5, "COMMIT", 7) == 0;
    return bytes[0] == 'P' && memcmp(bytes + 6, "WITH sett", 9) == 0;
}

/* The descriptor becomes one whose other end is closed; the caller believes that all was sent. */
static void cut(int fd, const void *bytes, size_t length,
                ssize_t (*real)(int, const void *, size_t, int)) {
    int ends[2];
    if (mode == CUT_REPLY) real(fd, bytes, length, MSG_NOSIGNAL);
    if (mode == CUT_LATE && fork() == 0) {
        nanosleep(&(struct timespec){.tv_nsec = LATE_MS * 1000000L}, NULL);
        real(fd, bytes, length, MSG_NOSIGNAL);
        _exit(0);
    }
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends)) return;
    close(ends[1]);
    dup2(ends[0], fd);
    close(ends[0]);
}

ssize_t send(int fd, const void *bytes, size_t length, int flags) {
    REAL(ssize_t, send, int, const void *, size_t, int);
    struct point here = at_socket(is_commit(bytes, length) ? "commit" : "send", fd, bytes, length);
    ssize_t answer = (ssize_t)length;
    if (here.number && here.turn == target && mode >= CUT_LOST) {
        trace->acted = here.number;
        cut(fd, bytes, length, real);
    } else {
        answer = real(fd, bytes, length, flags);
    }
    leave(here, answer < 0);
    return answer;
}

ssize_t sendto(int fd, const void *bytes, size_t length, int flags, const struct sockaddr *to,
               socklen_t size) {
    REAL(ssize_t, sendto, int, const void *, size_t, int, const struct sockaddr *, socklen_t);
    WRAP(ssize_t, at_socket("send", fd, bytes, length), real(fd, bytes, length, flags, to, size));
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    REAL(ssize_t, sendmsg, int, const struct msghdr *, int);
    WRAP(ssize_t, at_socket("send", fd, NULL, 0), real(fd, message, flags));
}

ssize_t recv(int fd, void *bytes, size_t length, int flags) {
    REAL(ssize_t, recv, int, void *, size_t, int);
    WRAP(ssize_t, at_socket("recv", fd, NULL, length), real(fd, bytes, length, flags));
}

ssize_t recvfrom(int fd, void *bytes, size_t length, int flags, struct sockaddr *from,
                 socklen_t *size) {
    REAL(ssize_t, recvfrom, int, void *, size_t, int, struct sockaddr *, socklen_t *);
    WRAP(ssize_t, at_socket("recv", fd, NULL, length), real(fd, bytes, length, flags, from, size));
}

int shutdown(int fd, int how) {
    REAL(int, shutdown, int, int);
    WRAP(int, at_socket("shutdown", fd, NULL, 0), real(fd, how));
}

int close(int fd) {
    REAL(int, close, int);
    WRAP(int, at_socket("close", fd, NULL, 0), real(fd));
}
