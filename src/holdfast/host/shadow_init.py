"""The inside of a shadow: makes its world, is its first process, and lets later ones in. A script without imports of
ours, run by its path (`python -I -S shadow_init.py ROLE ...`), because it starts for every command of a drill.

    init SPEC      unshare, wait for the id maps, then as process 1: mounts, new root, loopback; lives until the
                   life pipe (standard input) ends
    enter PID ...  join the namespaces of that init and become a command there
    listen PID     make a listening socket on the shadow's loopback and give it away over standard input

Every folder of this machine appears in the shadow at its own path, as the lower layer of an overlay whose upper layer
is in the drill's folder. The kernel refuses a lower layer that has mounts below it, so a folder that contains one is
made plainly, entry by entry. Through an overlay no socket or pipe of this machine can be reached: it has inodes of its
own. Devices are a short list, /proc shows the shadow's own processes, /sys is absent.
"""

import ctypes
import fcntl
import json
import os
import shutil
import signal
import socket
import stat
import struct
import sys
from contextlib import suppress
from typing import Any, NoReturn

LIBC = ctypes.CDLL(None, use_errno=True)
USER, MOUNTS, PIDS, NET, IPC, UTS = 0x10000000, 0x20000, 0x20000000, 0x40000000, 0x08000000, 0x04000000
NOSUID, NODEV, REMOUNT, READ_ONLY, BIND, RECURSIVE, PRIVATE = 2, 4, 32, 1, 4096, 16384, 1 << 18
DETACH = 2
OWN = ("/dev", "/proc", "/sys")
MARK = "/.holdfast-shadow"  # says that this is a shadow: see shadowed.py
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - a folder like others: what is in it appears
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
FILE_BYTES_COPIED = 1 << 20  # of files beside a mount; larger ones are shown read-only
CAPABILITIES_KEPT = range(8)  # over files, users and signals; none over mounts or the network
PR_SET_PDEATHSIG, PR_CAPBSET_READ, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 23, 24, 38
READY = b"ready"
Spec = dict[str, Any]  # Any: JSON of shadow.py


def checked(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str, flags: int = 0, data: str = "") -> None:
    words = [os.fsencode(one) for one in (source, target, kind, data)]
    checked(LIBC.mount(*words[:3], ctypes.c_ulong(flags), words[3]), f"mount {target}")


def main(role: str, *words: str) -> None:
    if role == "init":
        run_init(json.loads(words[0]))
    elif role == "enter":
        enter(int(words[0]), words[1], words[2:])
    else:
        listen(int(words[0]))


def run_init(spec: Spec) -> None:
    """Answers `unshared`, waits for one byte (the maps are written), then answers `ready`, or what failed."""
    parent = os.getppid()
    try:
        checked(LIBC.unshare(USER | MOUNTS | PIDS | NET | IPC | UTS), "unshare")
        os.write(1, b"unshared\n")
        if not os.read(0, 1):
            os._exit(1)
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
        first = os.fork()
    except OSError as error:
        fail(error)
    if first:
        os.close(1)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) != 0)
    try:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        LIBC.sethostname(b"shadow", 6)
        left = make_root(spec)
        raise_loopback()
        os.write(1, READY + b" " + json.dumps(left).encode() + b"\n")
    except OSError as error:
        fail(error)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps what dies here
    os.close(1)
    os.read(0, 1)  # until the drill ends, however it ends


def fail(error: OSError) -> NoReturn:
    os.write(1, f"failed {error.strerror or error}\n".encode())
    os._exit(1)


def make_root(spec: Spec) -> list[str]:
    """The new root; what could not be shown in it."""
    world = World(spec)
    mount("none", "/", "none", RECURSIVE | PRIVATE)
    os.makedirs(world.root, exist_ok=True)
    mount(world.root, world.root, "none", BIND)
    world.show("/")
    for name in OWN:
        os.makedirs(world.at(name), exist_ok=True)
    mount("proc", world.at("/proc"), "proc", NOSUID | NODEV)
    make_devices(world.at("/dev"))
    world.overlay(SHARED_MEMORY)
    for path in spec["own"]:
        copy_folder(path, world.at(path), gone=world.gone - {path})
    for source, target in spec["copies"]:
        copy(source, world.at(target))
    with open(world.at(MARK), "w", encoding="ascii"):
        pass
    for path, size in spec["small"]:
        put_on_disk(path, world, size)
    os.chdir(world.root)
    checked(LIBC.syscall(PIVOT_ROOT[os.uname().machine], b".", b"."), "pivot_root")
    checked(LIBC.umount2(b".", DETACH), "umount")
    os.chdir("/")
    return world.left


PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41}


class World:
    def __init__(self, spec: Spec) -> None:
        self.folder = spec["folder"]
        self.root = os.path.join(self.folder, "root")
        self.gone = {*spec["gone"], *spec["own"], self.folder}
        self.points = sorted(mount_points() - {"/"})
        self.left: list[str] = []

    def at(self, path: str) -> str:
        return self.root + path

    def below(self, path: str, paths: list[str] | set[str]) -> list[str]:
        start = path.rstrip("/") + "/"
        return sorted(one for one in paths if one.startswith(start))

    def show(self, path: str) -> None:
        """Make this folder of the machine appear at its path. What is gone is not made."""
        if self.below(path, self.points):
            self.split(path)
        else:
            self.overlay(path)

    def overlay(self, path: str) -> None:
        layer = os.path.join(self.folder, "layers", path.strip("/").replace("%", "%25").replace("/", "%2F"))
        upper, work = os.path.join(layer, "upper"), os.path.join(layer, "work")
        os.makedirs(upper, exist_ok=True)
        os.makedirs(work, exist_ok=True)
        like(path, upper)
        for one in self.below(path, self.gone):  # sorted: a folder before what is in it
            whiteout(path, upper, os.path.relpath(one, path))
        lower = path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")
        data = f"lowerdir={lower},upperdir={upper},workdir={work},userxattr"
        try:
            mount("overlay", self.at(path), "overlay", NOSUID | NODEV, data)
        except OSError as error:
            if os.path.ismount(path) and path != "/":
                self.left.append(f"{path}: {error.strerror}")
            else:
                raise

    def split(self, path: str) -> None:
        """A folder above mounts: made plainly, with each entry shown for itself."""
        try:
            entries = sorted(os.scandir(path), key=lambda one: one.name)
        except PermissionError:
            return
        for entry in entries:
            target = self.at(entry.path)
            if entry.path in self.gone:
                remove(target)  # an earlier shadow of this folder may have made it
            elif entry.path not in OWN:
                try:
                    self.show_entry(entry, target)
                except FileNotFoundError:
                    if os.path.lexists(entry.path):
                        raise  # else another program has just removed it

    def show_entry(self, entry: os.DirEntry[str], target: str) -> None:
        if entry.is_dir(follow_symlinks=False):
            os.makedirs(target, exist_ok=True)
            like(entry.path, target)
            self.show(entry.path)
        elif os.path.lexists(target):
            return  # the drill made it, in an earlier shadow of this folder
        elif entry.is_symlink():
            os.symlink(os.readlink(entry.path), target)
        elif entry.is_file():
            self.show_file(entry, target)

    def show_file(self, entry: os.DirEntry[str], target: str) -> None:
        found = entry.stat()
        if found.st_size <= FILE_BYTES_COPIED and entry.path not in self.points:
            try:
                copy(entry.path, target)
            except PermissionError:
                self.left.append(f"{entry.path}: not readable")
            return
        with open(target, "wb"):
            pass
        mount(entry.path, target, "none", BIND)
        mount("none", target, "none", BIND | REMOUNT | READ_ONLY | NOSUID | NODEV)


def mount_points() -> set[str]:
    found: set[str] = set()
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            path = line.split(" ")[4]
            for code in ("\\040", "\\011", "\\012", "\\134"):
                path = path.replace(code, chr(int(code[1:], 8)))
            if not any(path == own or path.startswith(own + "/") for own in OWN):
                found.add(path)
    return found


def whiteout(lower: str, upper: str, name: str) -> None:
    """Let this path be absent, also where an earlier shadow of this folder wrote it."""
    if not os.path.lexists(os.path.join(lower, name)) and not os.path.lexists(os.path.join(upper, name)):
        return
    parts = name.split("/")
    for depth in range(1, len(parts)):
        inner = "/".join(parts[:depth])
        target = os.path.join(upper, inner)
        if os.path.lexists(target) and not os.path.isdir(target):
            return  # a folder above is gone already
        if not os.path.isdir(target):
            os.mkdir(target)
            if os.path.isdir(os.path.join(lower, inner)):
                like(os.path.join(lower, inner), target)
    target = os.path.join(upper, name)
    remove(target)
    os.mknod(target, stat.S_IFCHR, os.makedev(0, 0))


def remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def like(source: str, target: str) -> None:
    found = os.stat(source)
    with suppress(OSError):  # not ours to give; the mode counts
        os.chown(target, found.st_uid, found.st_gid)
    os.chmod(target, stat.S_IMODE(found.st_mode))


def copy(source: str, target: str) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.copyfile(source, target)
    like(source, target)


def copy_folder(source: str, target: str, *, gone: set[str]) -> None:
    """Files, folders and links; nothing that is gone, and no socket or pipe."""
    os.makedirs(target, exist_ok=True)
    for entry in os.scandir(source):
        at = os.path.join(target, entry.name)
        if entry.path in gone:
            continue
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), at)
        elif entry.is_dir(follow_symlinks=False):
            copy_folder(entry.path, at, gone=gone)
        elif entry.is_file(follow_symlinks=False):
            with suppress(FileNotFoundError):  # a live agent has just removed it
                shutil.copy2(entry.path, at)
                like(entry.path, at)
    like(source, target)
    shutil.copystat(source, target)


def put_on_disk(path: str, world: World, size: int) -> None:
    """This folder of the shadow, on a disk of its own with so many bytes."""
    aside, target = os.path.join(world.folder, "aside"), world.at(path)
    shutil.copytree(target, aside, symlinks=True)
    mode = stat.S_IMODE(os.stat(target).st_mode)
    mount("tmpfs", target, "tmpfs", NOSUID | NODEV, f"mode={mode:o},size={size}")
    shutil.copytree(aside, target, symlinks=True, dirs_exist_ok=True)
    shutil.rmtree(aside)


def make_devices(target: str) -> None:
    mount("tmpfs", target, "tmpfs", NOSUID, "mode=755,size=64k")
    for name in DEVICES:
        with open(f"{target}/{name}", "wb"):
            pass
        mount(f"/dev/{name}", f"{target}/{name}", "none", BIND)
    os.symlink("/proc/self/fd", f"{target}/fd")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"{target}/{name}")
    os.mkdir(f"{target}/shm")


def raise_loopback() -> None:
    with socket.socket() as any_socket:
        flags = struct.pack("16sh", b"lo", 0x1 | 0x40)  # up, running
        fcntl.ioctl(any_socket, 0x8914, flags + bytes(22))


def join(pid: int, names: tuple[str, ...]) -> None:
    held = [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY) for name in names]
    for one in held:
        checked(LIBC.setns(one, 0), "setns")
        os.close(one)


def enter(pid: int, folder: str, words: tuple[str, ...]) -> None:
    parent = os.getppid()
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    join(pid, ("user", "mnt", "net", "ipc", "uts", "pid_for_children"))
    child = os.fork()
    if child:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda given, _: os.kill(child, given))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code < 0:
            signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code if code >= 0 else 128 - code)
    drop_capabilities()
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.setsid()  # without a terminal: what is typed into one could be commands outside
    os.chdir(folder)
    os.execvp(words[0], words)


def drop_capabilities() -> None:
    LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    number = 0
    while LIBC.prctl(PR_CAPBSET_READ, number, 0, 0, 0) >= 0:
        if number not in CAPABILITIES_KEPT:
            LIBC.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)
        number += 1


def listen(pid: int) -> None:
    join(pid, ("user", "net"))
    made = socket.create_server(("127.0.0.1", 0), backlog=1024)
    with socket.socket(fileno=0) as channel:
        socket.send_fds(channel, [str(made.getsockname()[1]).encode()], [made.fileno()])


if __name__ == "__main__":
    main(*sys.argv[1:])
