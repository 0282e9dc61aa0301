//! Reports of packets that the firewall refused, for as long as the sandbox lives.

use std::io;
use std::pin::pin;

use openshell_proxy::doors::bypass::BypassReports;
use openshell_supervisor::network::refused_packets::RefusedPackets;
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The refused packets, and the reports that are told about them.
pub(crate) struct PacketReporter {
    packets: AsyncFd<RefusedPackets>,
    reports: BypassReports,
}

impl PacketReporter {
    /// Reports `packets` to `reports`. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// Fails if the runtime takes no more descriptors.
    pub(crate) fn new(packets: RefusedPackets, reports: BypassReports) -> io::Result<Self> {
        #[expect(
            deprecated,
            reason = "unsound only for a type whose descriptor may change, which that of a socket \
                      does not"
        )]
        let packets = AsyncFd::with_interest(packets, Interest::READABLE)?;
        Ok(Self { packets, reports })
    }

    /// Reports packets until `stop` completes, and then those that are queued. The firewall limits
    /// their rate.
    pub(crate) async fn run(self, stop: impl Future) {
        let mut stop = pin!(stop);
        loop {
            let read = self
                .packets
                .async_io(Interest::READABLE, RefusedPackets::read);
            let read = tokio::select! {
                biased;
                read = read => read,
                _ = &mut stop => return,
            };
            match read {
                Ok(packets) => {
                    for packet in &packets {
                        self.reports.report(packet);
                    }
                }
                // The queue was full and packets were lost, or what was read is not a packet. Later
                // packets are still worth reporting.
                Err(error)
                    if error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error())
                        || error.kind() == io::ErrorKind::InvalidData => {}
                Err(error) => {
                    // The firewall works without its reports too.
                    tracing::warn!(
                        "attempts to go past the proxy are not reported any more: {error}"
                    );
                    stop.await;
                    return;
                }
            }
        }
    }
}
