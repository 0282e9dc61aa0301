//! The line that a gateway sends before SSH, which proves that it knows the secret of this sandbox.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::hmac;
use openshell_policy::secret::Secret;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use crate::ssh::limits::Limits;

/// First word of a preface.
const MAGIC: &str = "NSSH1";

/// The reason why a preface is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It is not a line of five words, or it did not arrive in time.
    Malformed,
    /// Its clock and ours differ by too much.
    Skewed,
    /// It was made with another secret.
    WrongMac,
    /// Its nonce was already used.
    Replayed,
    /// Too many other nonces have to be remembered.
    Full,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "no NSSH1 preface",
            Self::Skewed => "its time is too far from ours",
            Self::WrongMac => "made with another secret",
            Self::Replayed => "replayed",
            Self::Full => "too many prefaces within the allowed skew",
        })
    }
}

/// A verifier of prefaces.
#[derive(Debug)]
pub struct Prefaces {
    key: hmac::Key,
    skew: Duration,
    nonces: Mutex<Nonces>,
}

/// The known nonces in the order of their arrival, each with the time until which it is remembered,
/// in seconds since 1970.
#[derive(Debug, Default)]
struct Nonces {
    known: HashSet<String>,
    order: VecDeque<(u64, String)>,
}

impl Prefaces {
    /// Returns a verifier of prefaces that were made with `secret`, by clocks that differ from ours
    /// by at most `skew`.
    #[must_use]
    pub fn new(secret: &Secret, skew: Duration) -> Self {
        Self {
            key: hmac::Key::new(hmac::HMAC_SHA256, secret.expose()),
            skew,
            nonces: Mutex::default(),
        }
    }

    /// Reads a preface and answers it. If it is accepted, no byte behind its line has been read.
    ///
    /// # Errors
    /// Fails if the connection to the client breaks.
    pub(crate) async fn admit(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    ) -> io::Result<Result<(), Refusal>> {
        let (_, time) = Limits::PREFACE;
        let line = timeout(time, read_line(stream)).await.unwrap_or(Ok(None))?;
        let verdict = line
            .ok_or(Refusal::Malformed)
            .and_then(|line| self.verify(&line, SystemTime::now()));
        stream
            .write_all(if verdict.is_ok() { b"OK\n" } else { b"ERR\n" })
            .await?;
        stream.flush().await?;
        if verdict.is_err() {
            stream.shutdown().await?;
            // If the connection were closed while bytes are unread, the kernel would reset it, and
            // the answer might be lost.
            let mut rest = stream.take(Limits::PREFACE_REST);
            let mut nowhere = tokio::io::sink();
            let _ = timeout(Limits::LINGER, tokio::io::copy(&mut rest, &mut nowhere)).await;
        }
        Ok(verdict)
    }

    fn verify(&self, line: &str, now: SystemTime) -> Result<(), Refusal> {
        let words: Vec<_> = line.split(' ').collect();
        let [MAGIC, token, seconds, nonce, mac] = words[..] else {
            return Err(Refusal::Malformed);
        };
        let sent: u64 = seconds.parse().map_err(|_| Refusal::Malformed)?;
        let mac = from_hex(mac).ok_or(Refusal::Malformed)?;
        if nonce.is_empty() {
            return Err(Refusal::Malformed);
        }
        hmac::verify(
            &self.key,
            format!("{token}|{seconds}|{nonce}").as_bytes(),
            &mac,
        )
        .map_err(|_| Refusal::WrongMac)?;
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let skew = self.skew.as_secs();
        if now.abs_diff(sent) > skew {
            return Err(Refusal::Skewed);
        }
        // A preface from a clock ahead of ours is valid for up to twice the skew.
        self.nonces.lock().remember(nonce, now, now + 2 * skew)
    }
}

impl Nonces {
    fn remember(&mut self, nonce: &str, now: u64, until: u64) -> Result<(), Refusal> {
        while let Some((_, old)) = self.order.pop_front_if(|(until, _)| *until < now) {
            self.known.remove(&old);
        }
        if self.known.contains(nonce) {
            return Err(Refusal::Replayed);
        }
        if self.known.len() >= Limits::NONCES {
            return Err(Refusal::Full);
        }
        self.known.insert(nonce.to_owned());
        self.order.push_back((until, nonce.to_owned()));
        Ok(())
    }
}

/// Reads a line without its line end; `None` if the line is too long, is not UTF-8, or ends early.
async fn read_line(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    while line.len() < Limits::PREFACE.0 {
        let mut byte = [0];
        match stream.read(&mut byte).await? {
            0 => return Ok(None),
            _ if byte[0] == b'\n' => return Ok(String::from_utf8(line).ok()),
            _ => line.push(byte[0]),
        }
    }
    Ok(None)
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use aws_lc_rs::hmac;
    use openshell_policy::secret::Secret;

    use super::{Prefaces, Refusal};
    use crate::ssh::limits::Limits;

    const NOW: u64 = 1_800_000_000;

    fn prefaces() -> Prefaces {
        Prefaces::new(&Secret::new(b"secret".to_vec()), Duration::from_secs(300))
    }

    fn line(secret: &str, seconds: u64, nonce: &str) -> String {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        let mac = hmac::sign(&key, format!("tok|{seconds}|{nonce}").as_bytes());
        let hex: String = mac
            .as_ref()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        format!("NSSH1 tok {seconds} {nonce} {hex}")
    }

    fn verify(prefaces: &Prefaces, line: &str) -> Result<(), Refusal> {
        prefaces.verify(line, UNIX_EPOCH + Duration::from_secs(NOW))
    }

    // Conformance: SSH-02, SSH-03, SSH-04, SSH-05.
    #[test]
    fn a_preface_serves_once_with_the_secret_and_within_the_skew() {
        let prefaces = prefaces();
        assert_eq!(verify(&prefaces, &line("secret", NOW, "one")), Ok(()));
        assert_eq!(
            verify(&prefaces, &line("secret", NOW, "one")),
            Err(Refusal::Replayed)
        );
        assert_eq!(
            verify(&prefaces, &line("other", NOW, "two")),
            Err(Refusal::WrongMac)
        );
        for seconds in [NOW - 301, NOW + 301] {
            assert_eq!(
                verify(&prefaces, &line("secret", seconds, "three")),
                Err(Refusal::Skewed)
            );
        }
        for seconds in [NOW - 300, NOW + 300] {
            assert_eq!(
                verify(&prefaces, &line("secret", seconds, &format!("at{seconds}"))),
                Ok(())
            );
        }
    }

    #[test]
    fn what_is_no_preface_is_refused() {
        let prefaces = prefaces();
        let good = line("secret", NOW, "n");
        let cut = &good[..good.len() - 1];
        for line in [
            "",
            "NSSH1",
            "SSH-2.0-OpenSSH_9.2",
            cut,
            &format!("{good} x"),
            &good.replace("NSSH1", "NSSH2"),
        ] {
            assert_eq!(verify(&prefaces, line), Err(Refusal::Malformed), "{line}");
        }
        assert_eq!(
            verify(&prefaces, &line("secret", NOW, "")),
            Err(Refusal::Malformed)
        );
    }

    #[test]
    fn a_nonce_is_remembered_for_as_long_as_its_preface_could_be_replayed() {
        let prefaces = prefaces();
        let ahead = line("secret", NOW + 300, "n");
        assert_eq!(verify(&prefaces, &ahead), Ok(()));
        let later = UNIX_EPOCH + Duration::from_secs(NOW + 600);
        assert_eq!(prefaces.verify(&ahead, later), Err(Refusal::Replayed));
        let last = later + Duration::from_secs(1);
        assert_eq!(prefaces.verify(&ahead, last), Err(Refusal::Skewed));
    }

    #[test]
    fn fuzzed_prefaces_are_refused() {
        let good = line("secret", NOW, "n");
        let words: [&[u8]; 4] = [b" ", b"NSSH1", b"|", b"\0"];
        fuzz::fuzz(
            "preface",
            &[good.as_bytes(), b"NSSH1 a 1 b 00"],
            &words,
            |bytes| {
                if let Ok(text) = std::str::from_utf8(bytes) {
                    let prefaces = prefaces();
                    // Letter case matters everywhere except in the digits of the HMAC.
                    let signed = good.rfind(' ').unwrap();
                    let is_good =
                        text.eq_ignore_ascii_case(&good) && text.starts_with(&good[..signed]);
                    assert_eq!(verify(&prefaces, text).is_ok(), is_good, "{text}");
                }
            },
        );
    }

    #[test]
    fn a_full_store_of_nonces_refuses() {
        let prefaces = prefaces();
        let at = |seconds: u64| -> SystemTime { UNIX_EPOCH + Duration::from_secs(seconds) };
        for number in 0..Limits::NONCES {
            assert_eq!(
                prefaces.verify(&line("secret", NOW, &number.to_string()), at(NOW)),
                Ok(())
            );
        }
        assert_eq!(
            prefaces.verify(&line("secret", NOW, "more"), at(NOW)),
            Err(Refusal::Full)
        );
        assert_eq!(
            prefaces.verify(&line("secret", NOW + 601, "more"), at(NOW + 601)),
            Ok(())
        );
    }
}
