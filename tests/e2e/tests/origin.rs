//! An origin on the tests' host, plain and inside TLS, with its own certificate authority.

use std::path::PathBuf;

use lab::Lab;
use lab::host::Program;
use serde_json::Value;

/// A running origin, plain at port 8080 and inside TLS at the others.
pub(crate) struct Origin {
    folder: PathBuf,
    _program: Program,
}

/// Creates an authority and certificates: a valid one, an expired one, one for another name, and a
/// self-signed one.
const CERTIFICATES: &str = "
cd \"$1\"
key() { openssl ecparam -genkey -name prime256v1 -noout -out $1.key; }
issue() {
  key $1
  openssl req -new -key $1.key -subj /CN=$2 -out request.$1
  openssl x509 -req -in request.$1 -CA authority.pem -CAkey authority.key -days 2 -extfile name.$1 -out $1.pem
}
# One that ended years ago: only this command takes any dates.
expire() {
  key $1
  openssl req -new -key $1.key -subj /CN=$2 -out request.$1
  printf '%s\\n' '[ca]' default_ca=lab '[lab]' database=issued serial=serial new_certs_dir=. default_md=sha256 policy=names unique_subject=no \\
    '[names]' commonName=supplied > ca.cnf
  : > issued
  echo 1000 > serial
  openssl ca -batch -notext -config ca.cnf -cert authority.pem -keyfile authority.key -extfile name.$1 -startdate 20200101000000Z \\
    -enddate 20200102000000Z -in request.$1 -out $1.pem
}
key authority
openssl req -x509 -key authority.key -subj /CN=lab -days 2 -out authority.pem
echo subjectAltName=DNS:web.test,IP:10.99.0.1 | tee name.good name.expired > name.unknown
echo subjectAltName=DNS:other.test > name.other
issue good web.test
expire expired web.test
issue other other.test
key unknown
openssl req -x509 -key unknown.key -subj /CN=web.test -addext basicConstraints=critical,CA:FALSE -addext subjectAltName=DNS:web.test -days 2 -out unknown.pem
chmod a+r *
";

impl Origin {
    /// Starts the HTTP/1.1 origin.
    pub(crate) fn start(lab: &Lab) -> Self {
        Self::of(
            lab,
            "origin.py",
            include_str!("data/origin.py"),
            &["/usr/bin/python3"],
        )
    }

    /// Starts an origin that speaks HTTP/2 only.
    pub(crate) fn http2(lab: &Lab) -> Self {
        Self::of(
            lab,
            "origin2.js",
            include_str!("data/origin2.js"),
            &["/usr/bin/node"],
        )
    }

    /// Starts the program `text` in a file `name`, run by `interpreter` with its folder and ports
    /// as arguments.
    pub(crate) fn of(lab: &Lab, name: &str, text: &str, interpreter: &[&str]) -> Self {
        let folder = lab.folder("origin");
        let script = lab.file("certificates.sh", CERTIFICATES);
        let made = lab.shell(&format!(
            "sh -e {} {} 2>&1 >/dev/null",
            script.display(),
            folder.display()
        ));
        assert!(folder.join("unknown.pem").exists(), "{made}");
        let program = lab.file(name, text);
        let ports = [
            "8080",
            "443:good",
            "8443:good",
            "8444:expired",
            "8445:other",
            "8446:unknown",
        ];
        let words = [
            interpreter,
            &[program.to_str().unwrap(), folder.to_str().unwrap()],
            &ports,
        ]
        .concat();
        Self {
            _program: lab.program(&words),
            folder,
        }
    }

    /// Returns the text of a file that the origin writes.
    pub(crate) fn file(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.join(name)).unwrap_or_default()
    }

    /// Returns the path of the authority's certificate.
    pub(crate) fn authority(&self) -> String {
        self.folder.join("authority.pem").display().to_string()
    }

    /// Returns the requests so far: method, target, headers, length of the body, trailers.
    pub(crate) fn seen(&self) -> Vec<Value> {
        self.file("seen")
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// Returns the number of connections so far, with or without requests.
    pub(crate) fn connections(&self) -> usize {
        self.file("connections").len()
    }

    /// Returns methods and targets of the requests so far.
    pub(crate) fn asked(&self) -> Vec<String> {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        self.seen()
            .iter()
            .map(|seen| format!("{} {}", text(&seen[0]), text(&seen[1])))
            .collect()
    }
}

/// Returns a policy that permits `binaries` the origin at all ports under `rules`.
pub(crate) fn policy(binaries: &[&str], rules: &str) -> String {
    let endpoint = format!(
        "{{host: web.test, ports: [8080, 443, 8443, 8444, 8445, 8446], allowed_ips: [10.99.0.1], \
         {rules}}}"
    );
    let binaries: Vec<_> = binaries
        .iter()
        .map(|path| format!("{{path: {path}}}"))
        .collect();
    super::policy(&format!(
        "{{web: {{endpoints: [{endpoint}], binaries: [{}]}}}}",
        binaries.join(", ")
    ))
}

/// Enforced rules.
pub(crate) const FULL: &str = "protocol: rest, enforcement: enforce, access: full";
