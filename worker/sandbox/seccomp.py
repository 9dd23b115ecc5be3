"""A seccomp filter: system calls that a compiler has no use for fail.

The interface is the kernel's ``Documentation/userspace-api/seccomp_filter.rst``; the filter is a
program of classic BPF. Sockets fail with EACCES, the rest with EPERM, so that a program sees an
error and not a signal. A call of another architecture than the process's own kills it, for its
numbers mean other things.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

__all__ = ["install", "is_available"]

_PR_SET_SECCOMP = 22
_MODE_FILTER = 2

_LOAD_WORD = 0x20
_JUMP_EQUAL, _JUMP_GREATER_EQUAL, _JUMP_ANY_BIT = 0x15, 0x35, 0x45
_RETURN = 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_ALLOW, _ERROR, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000

_X32_BIT = 0x40000000
# CLONE_NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_NEW_NAMESPACES = 0x80 | 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000
_NEW_NAMESPACES |= 0x10000000 | 0x20000000 | 0x40000000

# machine -> (audit number of the architecture, position of the call's number in the table)
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}

# of x86-64 and of arm64; -1 where there is none
_SOCKET, _CLONE, _CLONE3 = (41, 198), (56, 220), (435, 435)
_REFUSED = {
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    # opens sockets and files past this filter
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    # files by handle, other views of the file system
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    # parts of the kernel with a history, and the machine itself
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "iopl": (172, -1),
    "ioperm": (173, -1),
}


def is_available() -> bool:
    """Say whether this kernel takes filters and this module knows the machine's call numbers."""
    if platform.machine() not in _MACHINES:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    # with no filter to read, a kernel that takes filters answers EFAULT
    libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, None, 0, 0)
    return ctypes.get_errno() == errno.EFAULT


def install(*, network: bool) -> None:
    """Install the filter in this process, for good and for its children.

    Args:
        network: leave sockets alone. The caller has set ``no_new_privs``.

    Raises:
        OSError: the kernel refuses.
    """
    program = _program(platform.machine(), network=network)

    class Filter(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))

    filter_ = Filter(len(program) // 8, program)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(filter_), 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _program(machine: str, *, network: bool) -> bytes:
    architecture, column = _MACHINES[machine]

    def step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("=HBBI", code, if_true, if_false, value)

    def fail(code: int) -> bytes:
        return step(_RETURN, _ERROR | code)

    steps = [
        step(_LOAD_WORD, _ARCHITECTURE_AT),
        step(_JUMP_EQUAL, architecture, 1, 0),
        step(_RETURN, _KILL_PROCESS),
        step(_LOAD_WORD, _NUMBER_AT),
    ]
    if machine == "x86_64":
        steps += [step(_JUMP_GREATER_EQUAL, _X32_BIT, 0, 1), fail(errno.ENOSYS)]
    refused = [(numbers[column], errno.EPERM) for numbers in _REFUSED.values()]
    # its flags lie in memory, out of a filter's reach; libraries fall back to clone
    refused.append((_CLONE3[column], errno.ENOSYS))
    if not network:
        refused.append((_SOCKET[column], errno.EACCES))
    for number, code in refused:
        if number >= 0:
            steps += [step(_JUMP_EQUAL, number, 0, 1), fail(code)]
    steps += [
        step(_JUMP_EQUAL, _CLONE[column], 0, 3),
        step(_LOAD_WORD, _FIRST_ARGUMENT_AT),
        step(_JUMP_ANY_BIT, _NEW_NAMESPACES, 0, 1),
        fail(errno.EPERM),
        step(_RETURN, _ALLOW),
    ]
    return b"".join(steps)
