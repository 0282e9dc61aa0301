//! The files by which programs inside find the sandbox's name server, mounted over the host's.

use std::fmt::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use openshell_policy::network::host::HostName;
use openshell_supervisor::confine::{Mount, Purpose};
use openshell_supervisor::network::netns::NAME_SERVER;
use openshell_supervisor::runs::sandbox_files::SandboxFile;

use crate::cli::NetworkMode;
use crate::config::Config;
use crate::startup::host::ca_files::write_file;

const RESOLV_CONF: &str = "/etc/resolv.conf";
const HOSTS: &str = "/etc/hosts";

/// The most search domains that are kept, more than any resolver uses (resolv.conf(5)).
const DOMAINS: usize = 32;

/// The files for resolvers, among those of the sandbox.
#[derive(Default)]
pub(crate) struct ResolverFiles {
    /// Folder of the files; `None` without a proxy.
    folder: Option<PathBuf>,
    /// Settings of resolvers inside.
    pub(crate) local: LocalNames,
}

/// Names that depend on the host.
#[derive(Default)]
pub(crate) struct LocalNames {
    /// Domains that resolvers inside add to names.
    pub(crate) search: Vec<HostName>,
    /// Names of the host itself.
    pub(crate) own: Vec<HostName>,
}

/// The caller's settings that are kept.
#[derive(Debug, Default, PartialEq, Eq)]
struct Settings {
    search: Vec<HostName>,
    /// How many dots a name must have to be looked up unchanged first (`ndots`).
    dots: Option<u8>,
}

impl ResolverFiles {
    /// Writes the files among the sandbox's own, `files`; writes none without a proxy.
    ///
    /// # Errors
    /// Fails if they cannot be written.
    pub(crate) fn create(config: &Config, files: &SandboxFile) -> anyhow::Result<Self> {
        if config.network.mode != NetworkMode::Proxy {
            return Ok(Self::default());
        }
        let folder = files.join("names");
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let settings = Settings::parse(&read(RESOLV_CONF));
        let own = rustix::system::uname();
        let hosts = hosts(&read(HOSTS), own.nodename().to_str().unwrap_or_default());
        let names = hosts
            .lines()
            .flat_map(|line| line.split(' ').skip(1))
            .filter_map(|name| HostName::parse(name).ok());
        let own = names.collect();
        std::fs::create_dir(folder.outside()).with_context(|| format!("cannot make {folder}"))?;
        write_file(
            &folder.join("resolv.conf"),
            [settings.resolv_conf().as_bytes()],
        )?;
        write_file(&folder.join("hosts"), [hosts.as_bytes()])?;
        Ok(Self {
            folder: Some(folder.inside().to_owned()),
            local: LocalNames {
                search: settings.search,
                own,
            },
        })
    }

    /// Returns the mounts of the files.
    pub(crate) fn mounts(&self) -> impl Iterator<Item = Mount> {
        let mount = |folder: &Path, name, place: &str| Mount {
            source: folder.join(name),
            target: place.into(),
            purpose: Purpose::Names,
        };
        let places = [("resolv.conf", RESOLV_CONF), ("hosts", HOSTS)];
        self.folder
            .iter()
            .flat_map(move |folder| places.map(|(name, place)| mount(folder, name, place)))
    }
}

impl Settings {
    /// Reads the lines of a resolv.conf(5) that do not name servers; the last of each kind wins.
    fn parse(text: &str) -> Self {
        let mut settings = Self::default();
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            match words.next() {
                Some("search" | "domain") => {
                    settings.search = words
                        .take(DOMAINS)
                        .filter_map(|word| HostName::parse(word).ok())
                        .collect();
                }
                Some("options") => {
                    let dots =
                        words.find_map(|word| word.strip_prefix("ndots:")?.parse::<u8>().ok());
                    settings.dots = dots.map(|dots| dots.min(15)).or(settings.dots);
                }
                _ => {}
            }
        }
        settings
    }

    fn resolv_conf(&self) -> String {
        let mut text = format!("nameserver {}\n", NAME_SERVER.ip());
        if !self.search.is_empty() {
            let domains: Vec<_> = self.search.iter().map(HostName::as_str).collect();
            text.push_str(&format!("search {}\n", domains.join(" ")));
        }
        text.push_str("options timeout:2 attempts:2");
        // Writing to a String cannot fail.
        let _ = self
            .dots
            .map_or(Ok(()), |dots| write!(text, " ndots:{dots}"));
        text.push('\n');
        text
    }
}

/// Returns the hosts file inside: loopback names, the host's own name `own`, and the entries for
/// loopback addresses of `text`, the host's file.
fn hosts(text: &str, own: &str) -> String {
    let mut hosts = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n".to_owned();
    let entries = text.lines().filter_map(|line| {
        let mut words = line.split('#').next()?.split_ascii_whitespace();
        let address: IpAddr = words.next()?.parse().ok()?;
        let names: Vec<_> = words
            .filter(|name| *name != "localhost" && HostName::parse(name).is_ok())
            .collect();
        (address.is_loopback() && !names.is_empty())
            .then(|| format!("{address} {}", names.join(" ")))
    });
    let entries: Vec<_> = entries.collect();
    let is_known = entries
        .iter()
        .any(|entry| entry.split(' ').skip(1).any(|name| name == own));
    let own =
        Some(format!("127.0.0.1 {own}")).filter(|_| !is_known && HostName::parse(own).is_ok());
    for entry in entries.into_iter().chain(own) {
        hosts.push_str(&entry);
        hosts.push('\n');
    }
    hosts
}

#[cfg(test)]
mod tests {
    use super::{Settings, hosts};

    #[test]
    fn the_callers_domains_and_dots_are_kept_and_no_server() {
        let host = "# made by hand\nnameserver 192.0.2.53\ndomain old.test\nsearch a.test b.test \
                    bad!name\noptions ndots:5 edns0\n";
        let expected =
            "nameserver 10.200.0.1\nsearch a.test b.test\noptions timeout:2 attempts:2 ndots:5\n";
        assert_eq!(Settings::parse(host).resolv_conf(), expected);
        assert_eq!(
            Settings::parse("").resolv_conf(),
            "nameserver 10.200.0.1\noptions timeout:2 attempts:2\n"
        );
    }

    #[test]
    fn hosts_are_those_of_loopback_addresses_and_the_host_itself() {
        let begin = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n";
        let host = "127.0.0.1 localhost\n127.0.1.1 box.test box # ours\n192.0.2.7 db.test\n::1 \
                    localhost six\nbroken\n";
        assert_eq!(
            hosts(host, "box"),
            format!("{begin}127.0.1.1 box.test box\n::1 six\n")
        );
        assert_eq!(
            hosts("192.0.2.7 db.test\n", "box"),
            format!("{begin}127.0.0.1 box\n")
        );
        assert_eq!(hosts("", "bad name"), begin);
    }
}
