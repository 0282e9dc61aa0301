//! TLS interception by the sandbox's certificate authority.

use lab::{Finished, Lab, Sandbox};

use super::origin::{FULL, Origin, policy};

const READ_ONLY: &str = "protocol: rest, enforcement: enforce, access: read-only";

fn sandbox<'l>(lab: &'l Lab, origin: &Origin, rules: &str) -> Sandbox<'l> {
    let python = super::python();
    let curl = ["/usr/bin/curl", "/usr/bin/openssl", python.as_str()];
    lab.sandbox(&policy(&curl, rules))
        .args(&["--upstream-ca-file", &origin.authority()])
}

fn curl(lab: &Lab, origin: &Origin, rules: &str, arguments: &str) -> Finished {
    sandbox(lab, origin, rules).sh(&format!(
        "curl -sS --http1.1 --suppress-connect-headers {arguments}; echo"
    ))
}

#[test]
fn sandboxes_with_one_folder_have_one_authority_whose_key_stays_outside() {
    let lab = Lab::with_web();
    let folder = lab
        .file("made", "")
        .with_file_name("ca")
        .display()
        .to_string();
    let policy = format!(
        "{}filesystem_policy: {{read_only: [/, {folder}]}}\n",
        super::policy("{}")
    );
    let as_caller = lab.as_caller();
    if lab::host::tier() == lab::host::Tier::Rootless {
        assert_eq!(
            lab.shell(&format!(
                "mkdir -m 700 {folder}; chown {0}:{0} {folder}",
                lab::host::UID
            )),
            ""
        );
    }
    let trusted = || {
        let script =
            format!("cat $NODE_EXTRA_CA_CERTS; cat {folder}/ca.pem 2>&1 | grep -c PRIVATE");
        let finished = lab
            .sandbox(&policy)
            .args(&["--ca-dir", &folder])
            .sh(&script);
        finished
            .stdout
            .strip_suffix("0\n")
            .unwrap_or_else(|| panic!("{finished:?}"))
            .to_owned()
    };
    let first = trusted();
    assert!(
        first.contains("BEGIN CERTIFICATE") && trusted() == first,
        "{first}"
    );
    let ca = |action: &str| {
        lab.shell(&format!(
            "{as_caller} {} ca {action} {folder}",
            lab.program_path().display()
        ))
    };
    assert!(ca("show").ends_with(&first), "{first}");
    let rotated = ca("rotate");
    assert!(
        rotated.ends_with(&first) && rotated.matches("BEGIN").count() == 2,
        "{rotated}"
    );
    assert!(trusted().ends_with(&first) && trusted() != first);
    assert_eq!(lab.shell(&format!("chmod 644 {folder}/ca.pem")), "");
    let finished = lab.sandbox(&policy).args(&["--ca-dir", &folder]).sh("true");
    assert!(
        finished.code() == 1 && finished.stderr.contains("ca.pem: others may read it"),
        "{finished:?}"
    );
}

#[test]
fn an_authority_is_followed_by_the_next_one_thirty_days_before_its_end_and_stays_trusted() {
    let lab = Lab::with_web();
    let run = |days: u32| {
        let folder = lab
            .file("made", "")
            .with_file_name(format!("ca-{days}"))
            .display()
            .to_string();
        let made = lab.shell(&format!(
            "mkdir -m 700 {folder} && cd {folder} && openssl genpkey -quiet -algorithm EC -pkeyopt \
             ec_paramgen_curve:P-256 > ca.pem && openssl req -x509 -key ca.pem -days {days} -subj \
             /CN=kept -addext keyUsage=critical,keyCertSign,cRLSign 2>&1 > own.pem && cat own.pem \
             >> ca.pem && chmod 600 ca.pem && chown -R {0}:{0} . && cat own.pem",
            lab::host::caller()
        ));
        let finished = lab
            .sandbox(&super::policy("{}"))
            .args(&["--ca-dir", &folder])
            .sh("cat $NODE_EXTRA_CA_CERTS");
        (made, finished)
    };
    let (kept, finished) = run(31);
    assert_eq!(
        finished.ok().trim().replace('\r', ""),
        kept.trim().replace('\r', ""),
        "{finished:?}"
    );
    let (kept, finished) = run(29);
    let trusted = finished.ok().replace('\r', "");
    assert!(
        trusted.matches("BEGIN").count() == 2 && trusted.trim().ends_with(kept.trim()),
        "{kept}\n{finished:?}"
    );
}

#[test]
fn requests_inside_tls_are_judged_and_answered_inside_tls() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let finished = curl(
        &lab,
        &origin,
        READ_ONLY,
        "-i https://web.test/hello https://web.test/two -X GET",
    );
    assert_eq!(
        finished.ok().matches("HTTP/1.1 200 OK").count(),
        2,
        "{finished:?}"
    );
    assert_eq!(origin.asked(), ["GET /hello", "GET /two"]);
    let finished = curl(
        &lab,
        &origin,
        READ_ONLY,
        "-i https://web.test/hello -d body",
    );
    assert!(
        finished
            .ok()
            .starts_with("HTTP/1.1 403 request_not_in_rules"),
        "{finished:?}"
    );
    assert_eq!(origin.asked().len(), 2);
    let line =
        "HTTP:POST [MED] DENIED POST https://web.test/hello [policy:web engine:l7] [request:1]";
    assert_eq!(finished.logged(line).len(), 1, "{}", finished.log);
    assert_eq!(
        finished
            .logged(
                "HTTP:GET [INFO] ALLOWED GET https://web.test/two [policy:web engine:l7] \
                         [request:2]"
            )
            .len(),
        1
    );
}

/// A server that wants a client certificate: in TLS 1.3 at port 9443, in TLS 1.2 at 9444; at 9445
/// it only asks for one.
const WANTS_CERTIFICATE: &str = r"
import socket, ssl, sys, threading
folder = sys.argv[1]
def context(version, mode):
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(folder + '/good.pem', folder + '/good.key')
    made.load_verify_locations(folder + '/authority.pem')
    made.minimum_version = made.maximum_version = version
    made.verify_mode = mode
    return made
def answer(c, context):
    try:
        c = context.wrap_socket(c, server_side=True)
        while c.recv(65536): c.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello')
    except OSError: pass
    finally: c.close()
def serve(port, context):
    s = socket.create_server(('10.99.0.1', port))
    def accept():
        while True: threading.Thread(target=answer, args=(s.accept()[0], context)).start()
    threading.Thread(target=accept).start()
serve(9443, context(ssl.TLSVersion.TLSv1_3, ssl.CERT_REQUIRED))
serve(9444, context(ssl.TLSVersion.TLSv1_2, ssl.CERT_REQUIRED))
serve(9445, context(ssl.TLSVersion.TLSv1_3, ssl.CERT_OPTIONAL))
print('ready', flush=True)
";

#[test]
fn an_upstream_that_wants_a_client_certificate_is_named_with_the_ways_out() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let folder = origin.authority().replace("/authority.pem", "");
    let server = lab.file("wants.py", WANTS_CERTIFICATE);
    let _server = lab.program(&["/usr/bin/python3", server.to_str().unwrap(), &folder]);
    let policy = |more: &str| {
        super::policy(&format!(
            "{{web: {{endpoints: [{{host: web.test, ports: [9443, 9444, 9445], allowed_ips: \
             [10.99.0.1]{more}}}], binaries: [{{path: /usr/bin/curl}}]}}}}"
        ))
    };
    let ask = |policy: &str, arguments: &str| {
        let script = format!(
            "for port in 9443 9444 9445; do curl -sS {arguments} https://web.test:$port/; echo; \
             done"
        );
        lab.sandbox(policy)
            .args(&["--upstream-ca-file", &origin.authority()])
            .sh(&script)
    };
    for version in ["--http1.1", "--http2"] {
        let finished = ask(&policy(""), version);
        let lines: Vec<_> = finished
            .stdout
            .lines()
            .filter(|line| !line.is_empty())
            .collect();
        for line in &lines[..2] {
            assert!(
                line.contains("upstream_wants_certificate") && line.contains("tls: skip"),
                "{finished:?}"
            );
        }
        assert_eq!(lines[2..], ["hello"], "{finished:?}");
    }
    let certificate =
        format!("--cacert {folder}/authority.pem --cert {folder}/good.pem --key {folder}/good.key");
    let policy = format!(
        "{}filesystem_policy: {{read_only: [/, {folder}]}}\n",
        policy(", tls: skip")
    );
    let finished = ask(&policy, &certificate);
    assert_eq!(
        finished.ok().lines().collect::<Vec<_>>(),
        ["hello"; 3],
        "{finished:?}"
    );
}

/// Returns the folder of a CA file: /etc/openshell-tls, or, where a user without rights finds none
/// there and can make none, the run folder's.
fn ca_folder(file: &str) -> String {
    let folder = std::path::Path::new(file)
        .parent()
        .unwrap()
        .display()
        .to_string();
    let is_in_run_folder = folder.starts_with(&format!("/run/user/{}/openshell/", lab::host::UID));
    let is_rootless = lab::host::tier() == lab::host::Tier::Rootless;
    assert!(
        folder == "/etc/openshell-tls"
            || is_rootless && is_in_run_folder && folder.ends_with("/tls"),
        "{folder}"
    );
    folder
}

// Conformance: TLS-01, TLS-02, TLS-03.
#[test]
fn the_files_are_there_for_every_program_and_hold_no_key() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let script = "
        for name in SSL_CERT_FILE REQUESTS_CA_BUNDLE CURL_CA_BUNDLE NODE_EXTRA_CA_CERTS; do eval echo \\$$name; done
        ls -ld ${SSL_CERT_FILE%/*}/* | cut -d' ' -f1,3
        cmp $SSL_CERT_FILE /etc/ssl/certs/ca-certificates.crt && echo same
        openssl x509 -in $NODE_EXTRA_CA_CERTS -noout -subject -nameopt RFC2253
        openssl verify -CAfile $SSL_CERT_FILE $NODE_EXTRA_CA_CERTS | sed 's/.*: //'
        openssl x509 -in $NODE_EXTRA_CA_CERTS -noout -fingerprint
        grep -rl 'PRIVATE KEY' ${SSL_CERT_FILE%/*}
        touch ${SSL_CERT_FILE%/*}/x; rm -f $SSL_CERT_FILE; true";
    let host = std::fs::read("/etc/ssl/certs/ca-certificates.crt").unwrap();
    let runs: Vec<_> = (0..2)
        .map(|_| sandbox(&lab, &origin, FULL).sh(script))
        .collect();
    let owner = if lab::host::caller() == 0 {
        "root".to_owned()
    } else {
        lab::host::UID.to_string()
    };
    let lines: Vec<_> = runs[0].ok().lines().collect();
    let folder = ca_folder(lines[0]);
    assert_eq!(&lines[..3], [format!("{folder}/ca-bundle.pem").as_str(); 3]);
    assert_eq!(lines[3], format!("{folder}/openshell-ca.pem"));
    assert!(
        lines[4..]
            .iter()
            .filter(|line| line.starts_with(&format!("-rw-r--r-- {owner}")))
            .count()
            >= 2,
        "{lines:?}"
    );
    assert!(
        lines.contains(&"same"),
        "what reads only the system's bundle is told as well: {:?}",
        runs[0]
    );
    assert!(
        lines.contains(&"subject=CN=OpenShell Sandbox CA,O=OpenShell"),
        "{lines:?}"
    );
    assert!(
        lines.contains(&"OK") && !lines.iter().any(|line| line.contains("PRIVATE")),
        "{lines:?}"
    );
    let fingerprints = runs.iter().map(|run| {
        run.stdout
            .lines()
            .find(|line| line.contains("ingerprint"))
            .unwrap()
    });
    let fingerprints: Vec<_> = fingerprints.collect();
    assert_ne!(fingerprints[0], fingerprints[1]);
    assert!(
        runs[0].stderr.contains("ermission denied") || runs[0].stderr.contains("Read-only"),
        "{:?}",
        runs[0]
    );
    assert_eq!(
        std::fs::read("/etc/ssl/certs/ca-certificates.crt").unwrap(),
        host
    );
    assert_eq!(
        lab.shell("find /run -name 'openshell-*'"),
        "",
        "the files end with the sandbox"
    );
}

// Conformance: TLS-04, TLS-05.
#[test]
fn the_certificate_is_for_exactly_the_host_that_was_asked_for() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let show = "f=$(mktemp); openssl s_client -proxy ${HTTPS_PROXY#http://} -connect web.test:443 -servername web.test -alpn h2,http/1.1 \
                -CAfile $SSL_CERT_FILE -verify_return_error -x509_strict </dev/null 2>&1 | tee $f | grep -E 'ALPN|Verif'
                openssl x509 -noout -subject -nameopt RFC2253 -ext subjectAltName,extendedKeyUsage,basicConstraints,authorityKeyIdentifier \
                < $f; rm $f";
    let finished = sandbox(&lab, &origin, FULL).sh(show);
    let shown = finished.ok();
    for text in [
        "ALPN protocol: http/1.1",
        "Verification: OK",
        "subject=CN=web.test",
        "DNS:web.test\n",
        "Server Authentication",
        "CA:FALSE",
    ] {
        assert!(shown.contains(text), "no {text:?} in {shown}\n{finished:?}");
    }
    assert!(
        shown.contains("Authority Key Identifier"),
        "strict verifiers want it: {shown}"
    );
    let odd = "openssl s_client -proxy ${HTTPS_PROXY#http://} -connect web.test:443 -servername \
               web.test -alpn spdy/3 </dev/null 2>&1 | grep -c 'no application protocol'";
    let finished = sandbox(&lab, &origin, FULL).sh(odd);
    assert_eq!(finished.ok(), "1");
    assert_eq!(
        finished
            .logged("engine:tls] [reason:the client offers neither HTTP/2 nor HTTP/1.1 (ALPN)")
            .len(),
        1,
        "{}",
        finished.log
    );
}

// Conformance: TLS-06.
#[test]
fn an_upstream_that_is_not_who_it_should_be_is_said_inside_tls_and_sent_nothing() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    for (port, reason) in [
        (8444, "has expired"),
        (8445, "is for another name"),
        (8446, "issuer is not trusted"),
    ] {
        let finished = curl(
            &lab,
            &origin,
            FULL,
            &format!("-i https://web.test:{port}/secret"),
        );
        assert!(
            finished
                .ok()
                .starts_with("HTTP/1.1 502 upstream_tls_invalid\r\n"),
            "{finished:?}"
        );
        assert!(finished.stdout.contains(reason), "{finished:?}");
        assert_eq!(
            finished
                .logged(&format!("web.test:{port} [policy:- engine:tls]"))
                .len(),
            1,
            "{}",
            finished.log
        );
    }
    assert_eq!(origin.asked().len(), 0);
    let distrusted = lab
        .sandbox(&policy(&["/usr/bin/curl"], FULL))
        .sh("curl -sS -i https://web.test/x");
    assert!(
        distrusted
            .stdout
            .contains("issuer is not trusted (--upstream-ca-file adds one)"),
        "{distrusted:?}"
    );
    let plain = curl(&lab, &origin, FULL, "-i https://web.test:8080/x");
    assert!(
        plain.ok().starts_with("HTTP/1.1 502 upstream_tls_invalid"),
        "an upstream without TLS: {plain:?}"
    );
}

// Conformance: TLS-07.
#[test]
fn what_skips_tls_sees_the_upstreams_own_certificate() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let issuer = "-kv -w 'code=%{http_code}' https://web.test/x 2>&1 | grep -oE 'issuer.*|code=.*' \
                  | tr -d '\\n'";
    let finished = curl(&lab, &origin, "tls: skip", issuer);
    assert!(
        finished.ok().contains("CN=lab") && finished.ok().contains("code=200"),
        "{finished:?}"
    );
    assert_eq!(finished.logged("HTTP:").len(), 0);
    let finished = curl(&lab, &origin, FULL, issuer);
    assert!(
        finished.ok().contains("O=OpenShell") && finished.ok().contains("code=200"),
        "twin: {finished:?}"
    );
    let opened = curl(
        &lab,
        &origin,
        FULL,
        "--cacert /etc/ssl/certs/ISRG_Root_X1.pem --capath /usr/share/doc https://web.test/x",
    );
    assert!(opened.stderr.contains("certificate"), "{opened:?}");
    let line = "engine:tls] [reason:untrusted: the client must read CURL_CA_BUNDLE, or the \
                endpoint `tls: skip`]";
    assert_eq!(opened.logged(line).len(), 1, "{}", opened.log);
    assert_eq!(opened.logged("[code:client_tls_failed]").len(), 1);
}

#[test]
fn the_folder_of_hashed_certificates_has_the_authority_and_keeps_the_others() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let verify = "openssl s_client -no-CAfile -no-CAstore -CApath /etc/ssl/certs \
                  -verify_return_error -proxy ${HTTPS_PROXY#http://} -connect web.test:443 \
                  -servername web.test </dev/null 2>&1 | grep -oE 'Verify return code: 0' | head \
                  -n 1";
    let script = format!(
        "{verify}; ls /etc/ssl/certs | grep -c '^ISRG_Root_X1'; cat \
         /etc/ssl/certs/ISRG_Root_X1.pem | grep -c BEGIN; touch /etc/ssl/certs/mine 2>&1 | grep -o \
         'Read-only'; all=$(grep -c BEGIN /etc/ssl/certs/ca-certificates.crt); hashed=$(ls \
         /etc/ssl/certs/*.0 | wc -l); [ $all -gt 100 ] && [ $hashed -gt 100 ] && echo both"
    );
    let finished = sandbox(&lab, &origin, FULL).sh(&script);
    assert_eq!(
        finished.ok(),
        "Verify return code: 0\n1\n1\nRead-only\nboth",
        "{finished:?}"
    );
    assert_eq!(
        lab.shell("ls /etc/ssl/certs | grep -c openshell; true"),
        "0\n",
        "the host's is as it was"
    );
    // A bundle of many certificates takes no more room, and nothing is put over what a flag names,
    // nor over what may be written.
    let many = lab.file(
        "many.pem",
        std::fs::read("/etc/ssl/certs/ca-certificates.crt").unwrap(),
    );
    let writable = format!(
        "{}filesystem_policy: {{read_write: [/etc/ssl/certs/java]}}\n",
        super::policy("{}")
    );
    let plain = super::policy("{}");
    for (policy, flags, count) in [
        (
            &plain,
            vec!["--upstream-ca-file", many.to_str().unwrap()],
            "1",
        ),
        (
            &plain,
            vec!["--upstream-ca-file", "/etc/ssl/certs/ca-certificates.crt"],
            "0",
        ),
        (&writable, vec![], "0"),
    ] {
        let finished = lab
            .sandbox(policy)
            .args(&flags)
            .sh("ls /etc/ssl/certs | grep -c openshell; true");
        assert_eq!(finished.ok(), count, "{flags:?}: {finished:?}");
        assert!(
            !finished.stderr.contains("TLS it would open"),
            "{finished:?}"
        );
    }
}

#[test]
fn a_client_that_does_not_trust_the_authority_is_summed_up_with_what_to_do() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let untrusting =
        "--cacert /etc/ssl/certs/ISRG_Root_X1.pem --capath /usr/share/doc https://web.test/x";
    let finished = curl(
        &lab,
        &origin,
        FULL,
        &format!("{untrusting}; curl -s {untrusting}"),
    );
    let expected = "openshell-sandbox: permitted, and failed:\n  2 x /usr/bin/curl -> \
                    web.test:443: client_tls_failed\n      untrusted: the client must read \
                    CURL_CA_BUNDLE, or the endpoint `tls: skip`\n";
    assert!(finished.stderr.ends_with(expected), "{finished:?}");
}

#[test]
fn a_name_inside_that_is_not_the_one_that_was_asked_for_is_misdirected() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let program = "
import os, socket, ssl, sys
host, port = os.environ['HTTPS_PROXY'][7:].split(':')
def ask(name, host_header, trickle=False):
    s = socket.create_connection((host, int(port)))
    s.sendall(b'CONNECT web.test:443 HTTP/1.1\\r\\nHost: web.test:443\\r\\n\\r\\n')
    assert b' 200 ' in s.recv(4096)
    context = ssl.create_default_context(cafile=os.environ['SSL_CERT_FILE'])
    context.check_hostname = False
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname=name)
    def pump(action):
        while True:
            try: return action()
            except ssl.SSLWantReadError: pass
            finally:
                data = outgoing.read()
                for start in range(0, len(data), 1 if trickle else 1 << 20): s.sendall(data[start:start + (1 if trickle else 1 << 20)])
            incoming.write(s.recv(65536))
    pump(tls.do_handshake)
    tls.write(f'GET /x HTTP/1.1\\r\\nHost: {host_header}\\r\\n\\r\\n'.encode())
    print(pump(lambda: tls.read(4096)).split(b' ')[1].decode())
ask('web.test', 'web.test')
ask(None, 'web.test')
ask('WEB.test', 'WEB.TEST:443')
ask('web.test', 'web.test', True)
ask('other.test', 'web.test')
ask('other.test', 'other.test')
ask('web.test', 'other.test')
";
    let finished = sandbox(&lab, &origin, FULL).python(program, &[]);
    assert_eq!(
        finished.ok().lines().collect::<Vec<_>>(),
        ["200", "200", "200", "200", "421", "421", "421"],
        "{finished:?}"
    );
    assert_eq!(
        finished.logged("[code:authority_mismatch]").len(),
        3,
        "{}",
        finished.log
    );
    assert_eq!(origin.asked().len(), 4);
}

// Conformance: TLS-09.
#[test]
fn where_programs_cannot_be_told_connections_that_need_it_are_refused() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let blocked = lab.file("a file", "");
    let place = format!("{}/tls", blocked.display());
    let finished = sandbox(&lab, &origin, FULL)
        .args(&["--tls-dir", &place])
        .sh("echo runs; curl -sS -i https://web.test/x");
    assert!(
        finished
            .stdout
            .starts_with("runs\nHTTP/1.1 503 authority_unavailable"),
        "{finished:?}"
    );
    assert!(finished.stderr.contains("see --tls-dir"), "{finished:?}");
    let skipped = sandbox(&lab, &origin, "tls: skip").args(&["--tls-dir", &place]);
    let skipped = skipped.sh("curl --http1.1 -sSk https://web.test/x");
    assert_eq!(skipped.ok(), "hello");
    let elsewhere = lab.folder("tls").join("here");
    let elsewhere = sandbox(&lab, &origin, FULL).args(&["--tls-dir", elsewhere.to_str().unwrap()]);
    let elsewhere = elsewhere.sh("echo $SSL_CERT_FILE; curl -sS https://web.test/x");
    assert!(
        elsewhere.ok().ends_with("/tls/here/ca-bundle.pem\nhello"),
        "{elsewhere:?}"
    );
}

#[test]
fn an_authority_file_that_is_none_is_said_at_the_start() {
    let lab = Lab::with_web();
    let empty = lab.file("empty.pem", "nothing").display().to_string();
    for (file, said) in [
        ("/no/such.pem", "cannot be read"),
        (empty.as_str(), "holds no certificate in PEM"),
    ] {
        let finished = lab
            .sandbox(&super::policy("{}"))
            .args(&["--upstream-ca-file", file])
            .sh("true");
        assert!(
            finished.code() == 1
                && finished
                    .stderr
                    .contains(&format!("--upstream-ca-file {file} {said}")),
            "{finished:?}"
        );
    }
}

// Conformance: FWD-07, FWD-04.
#[test]
fn a_request_for_https_is_sent_inside_tls_by_the_same_policy() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let line = |method: &str, url: &str| {
        format!("{method} {url} HTTP/1.1\\r\\nHost: web.test\\r\\nConnection: close\\r\\n\\r\\n")
    };
    let ask = |request: &str| sandbox(&lab, &origin, READ_ONLY).python(super::RAW, &[request]);
    let finished = ask(&line("GET", "https://web.test/x?q=1"));
    assert!(
        finished.ok().starts_with("HTTP/1.1 200 OK") && finished.ok().ends_with("hello"),
        "{finished:?}"
    );
    assert_eq!(origin.asked(), ["GET /x?q=1"]);
    let refused = ask(&line("POST", "https://web.test/x"));
    assert!(
        refused
            .stdout
            .starts_with("HTTP/1.1 403 request_not_in_rules"),
        "FWD-04: {refused:?}"
    );
    assert!(
        refused
            .stdout
            .contains("POST web.test:443/x denied by L7 policy")
            && refused
                .stdout
                .to_lowercase()
                .contains("x-openshell-policy: web"),
        "{refused:?}"
    );
    let bad = ask(&line("GET", "https://web.test:8444/x"));
    assert!(
        bad.stdout.starts_with("HTTP/1.1 502 upstream_tls_invalid"),
        "{bad:?}"
    );
    assert_eq!(origin.asked().len(), 1);
}

#[test]
fn the_callers_own_certificates_are_trusted_inside_and_its_keys_stay_outside() {
    let lab = Lab::with_web();
    let folder = lab.folder("callers");
    let path = folder.display();
    let made = lab.shell(&format!(
        "cd {path}; for n in one two; do openssl req -x509 -newkey ec -pkeyopt \
         ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=$n -keyout $n.key -out $n.pem \
         2>/dev/null; done; cat one.key one.pem > both.pem; chmod 755 .; chmod 644 *.pem; ls"
    ));
    assert_eq!(made, "both.pem\none.key\none.pem\ntwo.key\ntwo.pem\n");
    let policy = format!(
        "{}filesystem_policy: {{read_only: [{path}]}}\n",
        super::policy("{}")
    );
    let script = format!(
        "cd {path}; for v in $NODE_EXTRA_CA_CERTS $DENO_CERT $SSL_CERT_FILE; do for n in one two; \
         do openssl verify -no-CApath -CAfile $v $n.pem >/dev/null 2>&1 && echo $v $n; done; grep \
         -c PRIVATE $v; done"
    );
    let finished = lab
        .sandbox(&policy)
        .env("NODE_EXTRA_CA_CERTS", &format!("{path}/both.pem"))
        .env("SSL_CERT_FILE", &format!("{path}/two.pem"))
        .env("PIP_CERT", "/nowhere.pem")
        .sh(&script);
    let folder = ca_folder(finished.stdout.split(' ').next().unwrap());
    let besides = format!("{folder}/openshell-ca.pem one\n0\n");
    let all = format!("{folder}/ca-bundle.pem");
    assert_eq!(
        finished.stdout,
        format!("{besides}{besides}{all} one\n{all} two\n0\n"),
        "{finished:?}"
    );
    let said = finished.logged("programs inside do not trust what PIP_CERT names, /nowhere.pem: ");
    assert_eq!(said.len(), 1, "{}", finished.log);
    // What the proxy trusts, programs do where they speak TLS themselves.
    let added = lab
        .sandbox(&policy)
        .args(&["--upstream-ca-file", &format!("{path}/two.pem")])
        .sh(&script);
    let besides = format!("{folder}/openshell-ca.pem two\n0\n");
    let all = format!("{folder}/ca-bundle.pem two\n0\n");
    let run_folder = |text: &str| text.split_whitespace().next().map(ca_folder);
    let shown = added
        .stdout
        .replace(&run_folder(&added.stdout).unwrap(), &folder);
    assert_eq!(shown, format!("{besides}{besides}{all}"), "{added:?}");
}
