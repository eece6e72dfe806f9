/* The disk log: what the armed process did to the files and names under the root, in order.
 *
 * From it a parent works out what a machine that loses power may find on its disk: the bytes of
 * every write, and which sync came after it (crash/disk.py). An entry is made after the call has
 * returned, so a process that is killed before a call has not logged it. Files are known by their
 * inode number; a file that is made anew under a number that was free begins a new life.
 *
 * A sync keeps how long the log was when it began: what other threads wrote meanwhile is not
 * taken for synced. Space is taken with one atomic addition, so no lock is needed.
 */

enum entry_kind {
    LIFE = 1,      /* a process was armed */
    CREATE,        /* path: a new file */
    WRITE,         /* at, length: its bytes follow */
    SIZE,          /* length: the file was cut or grown to it */
    SYNC,          /* of a file */
    SYNC_FAILED,
    LINK,          /* path: one more name of the file */
    UNLINK,        /* path */
    RENAME,        /* path, NUL, new path */
    FOLDER,        /* path: a new folder */
    FOLDER_SYNC,   /* path */
    FOLDER_SYNC_FAILED,
};

struct entry {
    uint32_t bytes; /* of the whole entry, a multiple of 8 */
    uint32_t kind;  /* written last: 0 means that the writer was killed here */
    uint64_t file;
    int64_t at;
    int64_t length;
    uint64_t began;
}; /* bytes or paths follow */

struct disk_log {
    uint64_t capacity; /* of the entries */
    uint64_t used;     /* above the capacity: something was left out */
    uint64_t unused[6];
    char entries[];
};

static struct disk_log *disk_log;

static void disk_note(struct entry what, const void *rest, size_t rest_bytes) {
    size_t bytes = (sizeof what + rest_bytes + 7) & ~(size_t)7;
    uint64_t place = __atomic_fetch_add(&disk_log->used, bytes, __ATOMIC_SEQ_CST);
    if (place + bytes > disk_log->capacity) return;
    struct entry *entry = (struct entry *)(disk_log->entries + place);
    uint32_t kind = what.kind;
    what.kind = 0;
    what.bytes = (uint32_t)bytes;
    memcpy(entry, &what, sizeof what);
    if (rest_bytes) memcpy(entry + 1, rest, rest_bytes);
    __atomic_store_n(&entry->kind, kind, __ATOMIC_SEQ_CST);
}

static uint64_t disk_used(void) { return disk_log ? disk_log->used : 0; }

static uint64_t file_of(int fd) {
    struct stat found;
    return fstat(fd, &found) == 0 ? found.st_ino : 0;
}

static void log_write(int fd, const void *bytes, ssize_t length, int64_t at) {
    if (!disk_log || length <= 0) return;
    struct entry what = {.kind = WRITE, .file = file_of(fd), .at = at, .length = length};
    disk_note(what, bytes, (size_t)length);
}

static void log_size(int fd, int64_t length) {
    if (!disk_log) return;
    disk_note((struct entry){.kind = SIZE, .file = file_of(fd), .length = length}, NULL, 0);
}

/* fallocate only ever grows a file here. */
static void log_grown(int fd, int64_t length) {
    struct stat found;
    if (disk_log && fstat(fd, &found) == 0 && found.st_size >= length) log_size(fd, found.st_size);
}

static void log_sync(int fd, const char *where, uint64_t began, int failed) {
    struct stat found;
    if (!disk_log || fstat(fd, &found)) return;
    struct entry what = {.file = found.st_ino, .began = began};
    if (S_ISDIR(found.st_mode)) {
        what.kind = failed ? FOLDER_SYNC_FAILED : FOLDER_SYNC;
        disk_note(what, where, strlen(where) + 1);
    } else {
        what.kind = failed ? SYNC_FAILED : SYNC;
        disk_note(what, NULL, 0);
    }
}

static void log_name(uint32_t kind, uint64_t file, const char *where) {
    if (!disk_log || !where) return;
    disk_note((struct entry){.kind = kind, .file = file}, where, strlen(where) + 1);
}

static void log_rename(const char *from, const char *to) {
    char both[2 * 512];
    if (!disk_log || !from || !to) return;
    size_t first = strlen(from) + 1, second = strlen(to) + 1;
    if (first + second > sizeof both) return;
    memcpy(both, from, first);
    memcpy(both + first, to, second);
    disk_note((struct entry){.kind = RENAME}, both, first + second);
}
