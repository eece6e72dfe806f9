/* A disk that is full from one call on, until the parent says that there is room again.
 *
 * There is an amount of room, in the trace, so that parent and child see the same. Files that
 * grow take from it, files that are cut or removed give back, and what does not fit is refused
 * with ENOSPC. Growth is counted in blocks, as most file systems do; on a disk that copies on
 * write every write needs room (FULL_ANY). A new file or folder needs one block.
 * statvfs tells the same story, as the reserve looks there.
 */

#define BLOCK 4096

static int64_t blocks(int64_t bytes) { return (bytes + BLOCK - 1) / BLOCK * BLOCK; }

static int is_full(void) { return trace && trace->phase == PHASE_FULL; }

/* Take the room; 0 where it is not there. */
static int take_room(int64_t bytes) {
    if (bytes <= 0) return 1;
    if (__atomic_sub_fetch(&trace->room, bytes, __ATOMIC_SEQ_CST) >= 0) return 1;
    __atomic_add_fetch(&trace->room, bytes, __ATOMIC_SEQ_CST);
    errno = ENOSPC;
    return 0;
}

static void give_room(int64_t bytes) {
    if (bytes > 0) __atomic_add_fetch(&trace->room, bytes, __ATOMIC_SEQ_CST);
}

static int64_t size_of(int fd) {
    struct stat found;
    return fstat(fd, &found) == 0 ? found.st_size : 0;
}

static int room_to_write(struct point here, int fd, int64_t at, int64_t length) {
    if (!here.number || !is_full()) return 1;
    if (mode == FULL_ANY) return take_room(blocks(length));
    return take_room(blocks(at + length) - blocks(size_of(fd)));
}

static int room_for_size(struct point here, int fd, int64_t length) {
    if (!here.number || !is_full()) return 1;
    int64_t more = blocks(length) - blocks(size_of(fd));
    if (more < 0) give_room(-more);
    return take_room(more);
}

static int room_for_name(struct point here) {
    return !here.number || !is_full() || take_room(BLOCK);
}

/* What a name gives back when it goes: the file's blocks with its last name. */
static int64_t held_by(int folder, const char *file) {
    struct stat found;
    if (!is_full() || fstatat(folder, file, &found, AT_SYMLINK_NOFOLLOW)) return 0;
    return S_ISREG(found.st_mode) && found.st_nlink == 1 ? blocks(found.st_size) : 0;
}
