//! The ioctl(2) commands that a workload may use. Every other command is answered as if the file
//! did not know it, so that programs fall back. The commands in the list were traced from shells,
//! editors, terminals, language runtimes, databases, browsers, `ip` and container tools.
//!
//! A filter does not see for what kind of file a command is. A file system's command can change
//! what a read-only grant shows (`FS_IOC_SETFLAGS` works for the owner of a file that is open for
//! reading), copy a folder without the mounts in it (`BTRFS_IOC_SNAP_CREATE_V2`), or lock a home
//! (fscrypt). So a device's family of commands is allowed only if the policy lists the device. The
//! file rules then decide which device takes commands at all.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::seccomp::row::{Action, Comparison, Condition, Row};

/// The name and number of each command that every workload may use, the most frequent first.
pub const ALLOWED: &[(&str, u32)] = &[
    // Terminals (ioctl_tty(2)).
    ("TCGETS", 0x5401),
    ("TIOCGWINSZ", 0x5413),
    ("FIONBIO", 0x5421),
    ("FIONREAD", 0x541b),
    ("FIOCLEX", 0x5451),
    ("TCSETS", 0x5402),
    ("TCSETSW", 0x5403),
    ("TCSETSF", 0x5404),
    ("TIOCGPGRP", 0x540f),
    ("TIOCSPGRP", 0x5410),
    ("TCGETS2", 0x802c_542a),
    ("TCSETS2", 0x402c_542b),
    ("TCSETSW2", 0x402c_542c),
    ("TCSETSF2", 0x402c_542d),
    ("TCGETA", 0x5405),
    ("TCSETA", 0x5406),
    ("TCSETAW", 0x5407),
    ("TCSETAF", 0x5408),
    ("TCSBRK", 0x5409),
    ("TCXONC", 0x540a),
    ("TCFLSH", 0x540b),
    ("TCSBRKP", 0x5425),
    ("TIOCSCTTY", 0x540e),
    ("TIOCNOTTY", 0x5422),
    ("TIOCGSID", 0x5429),
    ("TIOCSWINSZ", 0x5414),
    ("TIOCOUTQ", 0x5411),
    ("TIOCGPTN", 0x8004_5430),
    ("TIOCSPTLCK", 0x4004_5431),
    ("TIOCGPTPEER", 0x5441),
    ("TIOCPKT", 0x5420),
    // Any descriptor.
    ("FIONCLEX", 0x5450),
    ("FIOASYNC", 0x5452),
    // Files: block size, shared blocks, extents, flags (ioctl_fs(2)).
    ("FIGETBSZ", 2),
    ("FICLONE", 0x4004_9409),
    ("FICLONERANGE", 0x4020_940d),
    ("FIDEDUPERANGE", 0xc018_9436),
    ("FS_IOC_FIEMAP", 0xc020_660b),
    ("FS_IOC_GETFLAGS", 0x8008_6601),
    ("FS_IOC_FSGETXATTR", 0x801c_581f),
    // Reading the configuration of the sandbox's own network (netdevice(7)).
    ("SIOCATMARK", 0x8905),
    ("SIOCGIFNAME", 0x8910),
    ("SIOCGIFCONF", 0x8912),
    ("SIOCGIFFLAGS", 0x8913),
    ("SIOCGIFADDR", 0x8915),
    ("SIOCGIFDSTADDR", 0x8917),
    ("SIOCGIFBRDADDR", 0x8919),
    ("SIOCGIFNETMASK", 0x891b),
    ("SIOCGIFMETRIC", 0x891d),
    ("SIOCGIFMTU", 0x8921),
    ("SIOCGIFHWADDR", 0x8927),
    ("SIOCGIFINDEX", 0x8933),
    ("SIOCGIFTXQLEN", 0x8942),
    ("SIOCGIFMAP", 0x8970),
];

/// `SIOCETHTOOL`: `psutil` and `tcpdump -D` continue only if the answer is that the network device
/// does not support it.
pub(super) const ETHTOOL: u32 = 0x8946;

/// A kind of devices that has its own commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those in `Family::as_str`")]
pub enum Family {
    Graphics,
    Nvidia,
    Kfd,
    Kvm,
    Sound,
    Input,
    Video,
    Hidraw,
    Fuse,
    Tun,
    Serial,
    Block,
    /// A device of no other family: every command except those of terminals, file systems, sockets
    /// and namespaces.
    Other,
}

/// The families, with the beginnings of their devices' paths.
const PLACES: &[(&str, Family)] = &[
    ("/dev/dri", Family::Graphics),
    ("/dev/nvidia", Family::Nvidia),
    ("/dev/kfd", Family::Kfd),
    ("/dev/kvm", Family::Kvm),
    ("/dev/snd", Family::Sound),
    ("/dev/input", Family::Input),
    ("/dev/video", Family::Video),
    ("/dev/media", Family::Video),
    ("/dev/hidraw", Family::Hidraw),
    ("/dev/fuse", Family::Fuse),
    ("/dev/net", Family::Tun),
    ("/dev/ttyUSB", Family::Serial),
    ("/dev/ttyACM", Family::Serial),
    ("/dev/ttyS", Family::Serial),
    ("/dev/sd", Family::Block),
    ("/dev/vd", Family::Block),
    ("/dev/nvme", Family::Block),
    ("/dev/loop", Family::Block),
    ("/dev/dm-", Family::Block),
];

/// The devices and folders of /dev that need only the commands of every workload.
const USUAL: &[&str] = &[
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/tty",
    "/dev/ptmx",
    "/dev/pts",
    "/dev/shm",
    "/dev/mqueue",
];

impl Family {
    /// Returns the name for messages.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Graphics => "graphics",
            Self::Nvidia => "NVIDIA",
            Self::Kfd => "AMD compute",
            Self::Kvm => "KVM",
            Self::Sound => "sound",
            Self::Input => "input",
            Self::Video => "video",
            Self::Hidraw => "HID",
            Self::Fuse => "FUSE",
            Self::Tun => "TUN",
            Self::Serial => "serial",
            Self::Block => "block",
            Self::Other => "other",
        }
    }

    /// Returns the families of the devices in `listed`, the paths that the policy itself lists.
    #[must_use]
    pub fn of<'p>(listed: impl Iterator<Item = &'p Path>) -> Vec<Self> {
        let mut found = Vec::new();
        for path in listed.filter(|path| path.starts_with("/dev") && *path != Path::new("/dev")) {
            let text = path.to_string_lossy();
            if USUAL.iter().any(|usual| path.starts_with(usual)) {
                continue;
            }
            let known = PLACES.iter().find(|(place, _)| text.starts_with(place));
            found.push(known.map_or(Self::Other, |(_, family)| *family));
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Returns masks and values that identify the commands of the family.
    fn patterns(self) -> Vec<(u32, u32)> {
        let whole = |letter: u8| vec![(0xff00, u32::from(letter) << 8)];
        // The commands of terminals and consoles with the same letter have no size and no
        // direction.
        let sized = |letter: u8| {
            let letter = u32::from(letter) << 8;
            [1 << 30, 2 << 30, 3 << 30]
                .map(|direction| (0xc000_ff00, direction | letter))
                .to_vec()
        };
        let exact = |numbers: &[u32]| numbers.iter().map(|number| (u32::MAX, *number)).collect();
        match self {
            Self::Graphics => whole(b'd'),
            // The memory manager's commands are bare numbers.
            Self::Nvidia => [whole(b'F'), vec![(!0xff, 0), (!0xf, 0x3000_0000)]].concat(),
            Self::Kfd => sized(b'K'),
            Self::Kvm => whole(0xae),
            Self::Sound => [
                whole(b'A'),
                whole(b'U'),
                whole(b'W'),
                whole(b'H'),
                whole(b'C'),
                sized(b'T'),
            ]
            .concat(),
            Self::Input => whole(b'E'),
            Self::Video => [sized(b'V'), whole(b'|')].concat(),
            Self::Hidraw => whole(b'H'),
            Self::Fuse => whole(0xe5),
            Self::Tun => sized(b'T'),
            Self::Serial => exact(&[
                0x5415, 0x5416, 0x5417, 0x5418, 0x5427, 0x5428, 0x545c, 0x545d, 0x541e,
            ]),
            Self::Block => exact(&[
                0x8008_1272,
                0x1260,
                0x1268,
                0x8008_1270,
                0x127b,
                0x1278,
                0x1279,
                0x125e,
            ]),
            Self::Other => Vec::new(),
        }
    }
}

/// The letters of commands of which only listed ones are allowed, whatever device the policy lists:
/// terminals, consoles, file systems, block devices, sockets, namespaces and processes, performance
/// events.
const CLOSED: &[u8] = &[
    0, b'T', b'K', b'V', b'f', b'X', b'v', 0x94, 0xf5, 0x12, b'L', 0x89, 0x8b, 0xb7, 0xff, b'$',
    b'!', 0xaa,
];

const REASON: &str =
    "commands that no program needs there: of file systems, consoles, devices and line disciplines";
const BREAKS: &str = "chattr, ldattach, setserial, wireless tools; what a device needs is open \
                      where the policy lists it";

/// Returns the rows for ioctl(2) of a workload with devices of `families`. Call this only once or
/// twice in a process, because it leaks the rows' conditions.
pub(super) fn rows(families: &[Family]) -> Vec<Row> {
    let number = |comparison| Condition {
        argument: 1,
        comparison,
    };
    let listed = ALLOWED
        .iter()
        .map(|(_, command)| number(Comparison::Unequal(*command)));
    let patterns = families.iter().flat_map(|family| family.patterns());
    let patterns = patterns.map(|(mask, value)| number(Comparison::Unmasked { mask, value }));
    let conditions: Vec<_> = listed.chain(patterns).collect();
    let row = |when: Vec<Condition>, action| Row {
        name: "SYS_ioctl",
        number: libc::SYS_ioctl,
        when: when.leak(),
        action,
        reason: REASON,
        breaks: BREAKS,
    };
    let ethtool = Row {
        reason: "settings of network devices",
        breaks: "",
        ..row(
            vec![number(Comparison::Equal(ETHTOOL))],
            Action::NotSupported,
        )
    };
    let refused: Vec<Row> = if families.contains(&Family::Other) {
        let of = |letter: &u8| {
            number(Comparison::Masked {
                mask: 0xff00,
                value: u32::from(*letter) << 8,
            })
        };
        let row = |letter| {
            row(
                [&[of(letter)], &conditions[..]].concat(),
                Action::NoTerminal,
            )
        };
        CLOSED.iter().map(row).collect()
    } else {
        vec![row(conditions, Action::NoTerminal)]
    };
    std::iter::once(ethtool).chain(refused).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{ALLOWED, Family};

    #[test]
    fn each_command_is_listed_once() {
        let mut numbers: Vec<_> = ALLOWED.iter().map(|(_, number)| number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), ALLOWED.len());
    }

    #[test]
    fn a_device_has_its_family_and_usual_ones_have_none() {
        let of = |path: &str| Family::of(std::iter::once(Path::new(path)));
        assert_eq!(of("/dev/dri/renderD128"), [Family::Graphics]);
        assert_eq!(of("/dev/nvidia0"), [Family::Nvidia]);
        assert_eq!(of("/dev/mine"), [Family::Other]);
        for path in ["/dev/pts", "/dev/null", "/srv/dev", "/dev/pts/3"] {
            assert_eq!(of(path), []);
        }
    }

    #[test]
    fn no_pattern_of_a_family_takes_in_a_dangerous_command_of_files_and_terminals() {
        // FIBMAP, FIFREEZE, FITRIM, FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR, BTRFS_IOC_SNAP_CREATE_V2,
        // FS_IOC_ADD_ENCRYPTION_KEY, FS_IOC_REMOVE_ENCRYPTION_KEY, FS_IOC_ENABLE_VERITY, TIOCSTI,
        // TIOCLINUX, TIOCSETD, TIOCEXCL, TIOCVHANGUP, TIOCCONS, KDSETMODE, VT_ACTIVATE,
        // SIOCSIFADDR, NS_GET_PARENT.
        let dangerous = [
            0xc004_5877,
            0xc018_5879,
            0x4008_6602,
            0x401c_5820,
            0x5000_9417,
            0xc050_6617,
            0xc040_6618,
            0x4080_6685,
            0x5412,
            0x541c,
            0x5423,
            0x540c,
            0x5437,
            0x541d,
            0x4b3a,
            0x5606,
            0x8916,
            0xb702,
        ];
        let families = [
            Family::Graphics,
            Family::Nvidia,
            Family::Kfd,
            Family::Kvm,
            Family::Sound,
            Family::Input,
            Family::Video,
            Family::Hidraw,
            Family::Fuse,
            Family::Tun,
            Family::Serial,
            Family::Block,
        ];
        for (mask, value) in families.into_iter().flat_map(Family::patterns) {
            assert!(
                dangerous
                    .iter()
                    .all(|command: &u32| command & mask != value),
                "{mask:#x} {value:#x}"
            );
        }
    }
}
