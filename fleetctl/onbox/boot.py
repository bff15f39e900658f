"""Which boot a box is in."""


def boot_of() -> str:
    """Changes with every boot: the kernel's boot id, and when PID 1 began (boxes that share a kernel share the id)."""
    with open("/proc/sys/kernel/random/boot_id") as source:
        boot = source.read().strip()
    with open("/proc/1/stat") as source:
        return "%s-%s" % (boot, source.read().rsplit(")", 1)[1].split()[19])
