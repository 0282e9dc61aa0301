# Boots an image with systemd, installs the package, starts a sandbox by its unit, uses it, and removes the package.
# Arguments: a folder for its files, the image's files, the package.
set -u
bundle=$1 image=$2 package=$3
unit=openshell-sandbox@demo.service
mkdir -p "$bundle/rootfs" "$bundle/changes"
mount -t tmpfs none "$bundle/changes" && mkdir "$bundle/changes/up" "$bundle/changes/work"
mount -t overlay -o "lowerdir=$image,upperdir=$bundle/changes/up,workdir=$bundle/changes/work" none "$bundle/rootfs" || exit
cp "$package" "$bundle/rootfs/root/package.deb"
mkdir "$bundle/rootfs/etc/openshell"
printf 'network_policies: {}\nfilesystem_policy: {read_write: [/var/lib/openshell/demo]}\n' > "$bundle/rootfs/etc/openshell/demo.yaml"
echo 'OPENSHELL_SANDBOX_COMMAND=sleep 600' > "$bundle/rootfs/etc/openshell/demo.env"
python3 - "$bundle/config.json" <<'END'
import json, sys
# Without those that concern the machine: CAP_SYS_MODULE, CAP_SYS_RAWIO, CAP_SYS_BOOT and CAP_SYS_TIME.
names = ("CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP NET_BIND_SERVICE NET_ADMIN NET_RAW IPC_LOCK SYS_CHROOT "
         "SYS_PTRACE SYS_ADMIN SYS_NICE SYS_TTY_CONFIG MKNOD AUDIT_WRITE SETFCAP")
sets = [f"CAP_{name}" for name in names.split()]
mount = lambda place, kind, *options: {"destination": place, "type": kind, "source": kind, "options": list(options)}
json.dump({
    "ociVersion": "1.0.0",
    "process": {"user": {"uid": 0, "gid": 0}, "args": ["/lib/systemd/systemd"], "cwd": "/", "env": ["PATH=/usr/sbin:/usr/bin", "container=oci"],
                "capabilities": {"bounding": sets, "effective": sets, "permitted": sets}},
    "root": {"path": "rootfs"},
    "mounts": [mount("/proc", "proc"), mount("/dev", "tmpfs", "mode=755"), mount("/dev/pts", "devpts", "newinstance", "ptmxmode=0666"),
               mount("/run", "tmpfs", "mode=755"), mount("/tmp", "tmpfs", "mode=1777"), mount("/sys", "sysfs", "ro"),
               mount("/sys/fs/cgroup", "cgroup", "rw")],
    "linux": {"namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount", "cgroup")]},
}, open(sys.argv[1], "w"))
END
umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup || exit
group=/sys/fs/cgroup/openshell-test-$$
outside=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)
mkdir "$group" && echo $$ > "$group/cgroup.procs" || exit
crun --root "$bundle/crun" --cgroup-manager=disabled run --pid-file "$bundle/pid" -b "$bundle" "box-$$" > "$bundle/console" 2>&1 &
container=$!
end() {
  crun --root "$bundle/crun" kill "box-$$" KILL
  wait $container
  echo $$ > "$outside/cgroup.procs"
  find "$group" -depth -type d -exec rmdir {} +
}
trap end EXIT
await() { for _ in $(seq 600); do "$@" > /dev/null 2>&1 && return; sleep 0.05; done; echo "not within 30 s: $*"; cat "$bundle/console"; exit 1; }
await test -s "$bundle/pid"
inside() { nsenter -t "$(cat "$bundle/pid")" -m -p -n -i -u -C "$@"; }
await inside systemctl show --property Version
inside dpkg -i /root/package.deb > /dev/null && inside openshell-sandbox --version
inside systemd-analyze verify $unit && echo verified
inside systemctl daemon-reload
inside systemctl start $unit; inside systemctl is-active $unit
await inside openshell-sandbox exec demo -- true
inside openshell-sandbox exec demo -- sh -c "id -un; curl -s -o /dev/null -w '%{http_connect}\n' https://example.com; touch /var/lib/openshell/demo/file && ls -l /var/lib/openshell/demo | grep -o 'nobody.*nogroup'; touch /etc/x"
inside systemctl reload $unit; inside systemctl is-active $unit
inside systemctl stop $unit; inside systemctl show --property Result $unit
inside systemctl start $unit; await inside openshell-sandbox exec demo -- true
inside sh -c 'cat /var/log/openshell.2*.log' | grep -o 'CONFIG:DEGRADED.*\|Policy reloaded successfully\|\[exit:.*'
inside dpkg --purge openshell-sandbox > /dev/null && inside systemctl show --property ActiveState,LoadState $unit && inside find / -xdev -name '*openshell-sandbox*' -not -path '/proc/*' -not -path '/sys/*' -not -path '/var/lib/systemd/*' && echo removed
