//! Real clients that know no proxy: databases, ssh, and web clients without a variable, each only
//! where the policy says.

use std::fmt::Write;

use lab::host::Program;
use lab::{Finished, Lab};

use super::origin::{self, Origin};
use super::{policy, python};

fn lab() -> Lab {
    Lab::new(&[("10.99.0.1", "web.test db.test")])
}

/// The executables of `programs` may go to db.test:`port`, whose bytes are nobody's business.
fn database(port: u16, programs: &[&str]) -> String {
    let mut binaries = String::new();
    for program in programs {
        let path = std::fs::canonicalize(program).unwrap();
        write!(binaries, "{{path: {}}}, ", path.display()).unwrap();
    }
    policy(&format!(
        "{{database: {{endpoints: [{{host: db.test, port: {port}, protocol: tcp, enforcement: \
         enforce, access: full, allowed_ips: [10.99.0.1]}}], binaries: [{binaries}]}}}}"
    ))
}

/// Starts `script` on the lab, and waits until it prints a line.
fn server(lab: &Lab, name: &str, script: &str) -> Program {
    let file = lab.file(name, format!("#!/bin/sh\nset -e\n{script}\n"));
    lab.program(&[file.to_str().unwrap()])
}

/// Becomes `server`, which ends with the shell's process, and prints a line once a connection to
/// `port` is possible.
fn becomes(server: &str, port: u16) -> String {
    format!(
        "(until nc -z 10.99.0.1 {port}; do :; done; echo ready) &\nexec {server} >/dev/null 2>&1"
    )
}

/// The folder of PostgreSQL's programs.
fn postgresql() -> String {
    let versions = std::fs::read_dir("/usr/lib/postgresql").unwrap();
    let newest = versions.map(|entry| entry.unwrap().path()).max().unwrap();
    newest.join("bin").display().to_string()
}

/// Starts PostgreSQL at 10.99.0.1:5432 for the user `agent`.
pub(crate) fn start_postgresql(lab: &Lab) -> Program {
    let folder = lab.folder("postgresql");
    let bin = postgresql();
    let run = format!(
        "setpriv --reuid {0} --regid {0} --clear-groups",
        lab::host::UID
    );
    let postgres = format!(
        "{run} {bin}/postgres -D data -h 10.99.0.1 -k {0} -c ssl=on -c ssl_key_file={0}/key -c \
         ssl_cert_file={0}/cert -c fsync=off",
        folder.display()
    );
    let script = format!(
        "cd {0}; openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout key -out cert -subj /CN=db.test \
         -days 2 2>/dev/null; chmod 600 key; chown {2} key cert
        {1} {3}/initdb -D data -U agent --auth=trust >/dev/null
        echo 'host all all 0.0.0.0/0 trust' >> data/pg_hba.conf
        {4}",
        folder.display(),
        run,
        lab::host::UID,
        bin,
        becomes(&postgres, 5432)
    );
    // The user has no name, which initdb asks for.
    let users = std::fs::read_to_string("/etc/passwd").unwrap()
        + &format!("agent:x:{0}:{0}::/tmp:/bin/sh\n", lab::host::UID);
    let users = lab.file("passwd", users);
    assert_eq!(
        lab.shell(&format!("mount --bind {} /etc/passwd", users.display())),
        ""
    );
    server(lab, "postgresql.sh", &script)
}

#[test]
fn postgresql_is_reached_by_its_clients_with_and_without_tls_and_by_no_other_program() {
    let lab = lab();
    let _server = start_postgresql(&lab);
    let psql = format!("{}/psql", postgresql());
    let data = database(5432, &[&psql, &python()]);
    let script = format!(
        "url=postgresql://agent@db.test/postgres
        psql -XAt $url -c 'select 6 * 7'; psql -XAt \"$url?sslmode=require\" -c 'select ssl from pg_stat_ssl where pid = pg_backend_pid()'
        cat > $TMPDIR/clients.py <<'END'
import asyncio, asyncpg, psycopg
for mode in ('disable', 'require'):
    with psycopg.connect(host='db.test', user='agent', dbname='postgres', sslmode=mode) as c:
        print('psycopg', c.execute('select 6 * 7').fetchone()[0])
async def main():
    c = await asyncpg.connect(host='db.test', user='agent', database='postgres')
    print('asyncpg', await c.fetchval('select 6 * 7'))
    await c.close()
asyncio.run(main())
END
        /usr/bin/python3 $TMPDIR/clients.py
        {}/pg_isready -h db.test -t 5; echo isready $?",
        postgresql()
    );
    let finished = lab
        .sandbox(&data)
        .args(&["--log-level", "info"])
        .sh(&format!(
            "export TMPDIR=$(mktemp -d); {script}; rm -r $TMPDIR"
        ));
    let lines: Vec<_> = finished
        .ok()
        .lines()
        .filter(|line| !line.contains("no response"))
        .collect();
    assert_eq!(
        lines,
        [
            "42",
            "t",
            "psycopg 42",
            "psycopg 42",
            "asyncpg 42",
            "isready 2"
        ],
        "{finished:?}"
    );
    assert!(
        !finished
            .logged(&format!("NET:OPEN [INFO] ALLOWED {psql}("))
            .is_empty(),
        "{}",
        finished.log
    );
    let denied = "/pg_isready -> db.test:5432: binary_not_in_policy";
    assert!(finished.stderr.contains(denied), "{}", finished.stderr);
}

#[test]
fn node_postgres_needs_no_variable() {
    let lab = lab();
    let packages = super::sdks::installed(
        "node-postgres",
        "cd \"$FOLDER\" && npm install --silent --no-audit --no-fund pg",
    );
    let _server = start_postgresql(&lab);
    let node = std::fs::canonicalize("/usr/bin/node")
        .unwrap()
        .display()
        .to_string();
    let folder = packages.0.display().to_string();
    let data =
        database(5432, &[&node]) + &format!("filesystem_policy: {{read_only: [{folder}]}}\n");
    let program = format!(
        "const {{ Client }} = require('{folder}/node_modules/pg');
        (async () => {{
          const c = new Client({{ host: 'db.test', user: 'agent', database: 'postgres' }});
          await c.connect(); console.log((await c.query('select 6 * 7 as n')).rows[0].n); await c.end();
        }})()"
    );
    assert_eq!(
        lab.sandbox(&data)
            .run(&["/usr/bin/node", "-e", &program])
            .ok(),
        "42"
    );
}

/// Starts Redis at 10.99.0.1:6379.
pub(crate) fn start_redis(lab: &Lab) -> Program {
    let script = becomes(
        "redis-server --bind 10.99.0.1 --protected-mode no --save '' --dir /tmp",
        6379,
    );
    server(lab, "redis.sh", &script)
}

#[test]
fn redis_is_reached_by_its_clients_and_by_no_other_program() {
    let lab = lab();
    let _server = start_redis(&lab);
    let data = database(6379, &["/usr/bin/redis-cli", &python()]);
    let script =
        "redis-cli -h db.test set a 1; redis-cli -h db.test incr a; redis-cli -h web.test ping 2>&1
        /usr/bin/python3 -c \"import redis; print(redis.Redis('db.test').incr('a'))\"
        echo PING | nc -w 5 db.test 6379; echo nc $?";
    let finished = lab.sandbox(&data).sh(script);
    let lines: Vec<_> = finished.ok().lines().collect();
    assert_eq!(lines[..2], ["OK", "2"], "{finished:?}");
    assert!(
        lines[2].contains("Name or service not known"),
        "{finished:?}"
    );
    assert_eq!(lines[3], "3", "{finished:?}");
    assert!(!finished.stdout.contains("PONG"), "{finished:?}");
    assert!(
        finished
            .stderr
            .contains("-> db.test:6379: binary_not_in_policy"),
        "{}",
        finished.stderr
    );
}

#[test]
fn mariadb_which_speaks_first_is_reached_at_once() {
    let lab = lab();
    let folder = lab.folder("mariadb");
    let run = format!(
        "setpriv --reuid {0} --regid {0} --clear-groups",
        lab::host::UID
    );
    let mariadb = format!(
        "{run} mariadbd --no-defaults --datadir={0}/data --socket={0}/socket \
         --bind-address=10.99.0.1 --skip-name-resolve --skip-grant-tables --skip-networking=0",
        folder.display()
    );
    let script = format!(
        "cd {0}; {run} mariadb-install-db --no-defaults --datadir={0}/data --auth-root-authentication-method=normal \
         --skip-test-db >/dev/null 2>&1
        {1}",
        folder.display(),
        becomes(&mariadb, 3306)
    );
    let _server = server(&lab, "mariadb.sh", &script);
    let data = database(3306, &["/usr/bin/mariadb", &python()]);
    let script = "mariadb --no-defaults --skip-ssl -h db.test -u agent -N -e 'select 6 * 7'
        /usr/bin/python3 -c \"
import pymysql
c = pymysql.connect(host='db.test', user='agent')
k = c.cursor(); k.execute('select 6 * 7'); print(k.fetchone()[0])\"";
    let finished = lab.sandbox(&data).sh(script);
    assert_eq!(finished.ok(), "42\n42", "{finished:?}");
}

#[test]
fn ssh_and_git_over_it_work_by_name_and_are_refused_elsewhere() {
    let lab = lab();
    let folder = lab.folder("ssh");
    let home = lab.folder("home");
    let users = std::fs::read_to_string("/etc/passwd").unwrap()
        + &format!(
            "agent:x:{0}:{0}::{1}:/bin/sh\n",
            lab::host::UID,
            home.display()
        );
    let users = lab.file("passwd", users);
    assert_eq!(
        lab.shell(&format!("mount --bind {} /etc/passwd", users.display())),
        ""
    );
    let sshd = format!(
        "/usr/sbin/sshd -D -e -f /dev/null -h {0}/host -o ListenAddress=10.99.0.1:22 -o \
         AuthorizedKeysFile={0}/authorized -o StrictModes=no -o UsePAM=no -o PidFile=none",
        folder.display()
    );
    let script = format!(
        "cd {0}; mkdir -p /run/sshd; ssh-keygen -q -t ed25519 -N '' -f host; ssh-keygen -q -t ed25519 -N '' -f {1}/key
        cp {1}/key.pub authorized; chown -R {2} {1}; chown root {0}; chmod 755 {0}; git init -q --bare {0}/repo.git; chown -R {2} {0}/repo.git
        {3}",
        folder.display(),
        home.display(),
        lab::host::UID,
        becomes(&sshd, 22)
    );
    let _server = server(&lab, "sshd.sh", &script);
    let data = database(22, &["/usr/bin/ssh"])
        + &format!("filesystem_policy: {{read_write: [{}]}}\n", home.display());
    let script = format!(
        "cd {0}; export HOME={0} GIT_SSH_COMMAND='ssh -i key -o StrictHostKeyChecking=no -o UserKnownHostsFile=known -o LogLevel=ERROR'
        $GIT_SSH_COMMAND agent@db.test 'echo over ssh'
        git clone -q agent@db.test:{1}/repo.git a 2>/dev/null; cd a; git config user.email a@lab.test; git config user.name a
        GIT_SSH_COMMAND=\"ssh -i ../key -o StrictHostKeyChecking=no -o UserKnownHostsFile=../known -o LogLevel=ERROR\"
        echo 1 > f; git add f; git commit -qm one; git push -q origin HEAD:main && git ls-remote origin | cut -f2
        ssh -i ../key -o ConnectTimeout=5 agent@web.test true 2>&1 | grep -c 'Could not resolve'",
        home.display(),
        folder.display()
    );
    let finished = lab
        .sandbox(&data)
        .args(&["--log-level", "info"])
        .sh(&script);
    assert_eq!(
        finished.ok(),
        "over ssh\nrefs/heads/main\n1",
        "{finished:?}"
    );
    assert!(
        finished.logged("ALLOWED /usr/bin/ssh(").len() >= 3,
        "{}",
        finished.log
    );
}

/// Runs `script` without the variables of a proxy, under `rules` for the origin.
fn without_variables(
    lab: &Lab,
    origin: &Origin,
    binaries: &[&str],
    rules: &str,
    script: &str,
) -> Finished {
    let real: Vec<_> = binaries
        .iter()
        .map(|path| std::fs::canonicalize(path).unwrap().display().to_string())
        .collect();
    let real: Vec<_> = real.iter().map(String::as_str).collect();
    let unset = "unset HTTP_PROXY HTTPS_PROXY ALL_PROXY http_proxy https_proxy grpc_proxy \
                 NODE_USE_ENV_PROXY JAVA_TOOL_OPTIONS";
    let data = origin::policy(&real, rules);
    lab.sandbox(&data)
        .args(&[
            "--upstream-ca-file",
            &origin.authority(),
            "--log-level",
            "info",
        ])
        .sh(&format!("{unset}; {script}"))
}

#[test]
fn web_clients_without_a_variable_are_judged_inside_tls() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let rules =
        "protocol: rest, enforcement: enforce, rules: [{allow: {method: GET, path: /hello}}]";
    let script = "curl -sS --noproxy '*' https://web.test/hello; echo
        curl -sS --noproxy '*' -o /dev/null -w '%{http_code}\\n' https://web.test/other
        node -e \"const f = p => fetch('https://web.test' + p); f('/hello').then(r => r.text()).then(async t => console.log('fetch', t, (await f('/other')).status))\"
        cat > /tmp/aio$$.py <<'END'
import aiohttp, asyncio
async def main():
    async with aiohttp.ClientSession() as s:
        async with s.get('https://web.test/hello') as r: text = await r.text()
        async with s.get('https://web.test/other') as r: print('aiohttp', text, r.status)
asyncio.run(main())
END
        /usr/bin/python3 /tmp/aio$$.py; rm /tmp/aio$$.py";
    let finished = without_variables(
        &lab,
        &origin,
        &["/usr/bin/curl", "/usr/bin/node", "/usr/bin/python3"],
        rules,
        script,
    );
    assert_eq!(
        finished.ok(),
        "hello\n403\nfetch hello 403\naiohttp hello 403",
        "{finished:?}"
    );
    assert!(
        finished.logged("-> web.test:443 [policy:").len() >= 3,
        "{}",
        finished.log
    );
}

#[test]
fn java_needs_no_proxy_and_curl_may_take_socks() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let program = "
import java.net.URI; import java.net.http.*;
public class Client { public static void main(String[] a) throws Exception {
  for (String path : new String[] {\"hello\", \"other\"}) {
    var request = HttpRequest.newBuilder(URI.create(\"http://web.test:8080/\" + path)).version(HttpClient.Version.HTTP_1_1).build();
    System.out.println(HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.discarding()).statusCode());
  } } }";
    let rules =
        "protocol: rest, enforcement: enforce, rules: [{allow: {method: GET, path: /hello}}]";
    let script = format!(
        "d=$(mktemp -d); cat > $d/Client.java <<'END'\n{program}\nEND\njava $d/Client.java; rm -r $d
        for how in socks5 socks5-hostname; do curl -sS --$how 10.200.0.1:3128 https://web.test/hello; echo; done
        curl -sS --socks5-hostname 10.200.0.1:3128 -o /dev/null -w '%{{http_code}}\\n' https://web.test/other"
    );
    let finished = without_variables(
        &lab,
        &origin,
        &["/usr/bin/java", "/usr/bin/curl"],
        rules,
        &script,
    );
    assert_eq!(finished.ok(), "200\n403\nhello\nhello\n403", "{finished:?}");
    assert_eq!(finished.logged("[door:socks]").len(), 3, "{}", finished.log);
}

#[test]
fn the_interpreter_of_a_virtual_environment_reaches_its_database() {
    let lab = lab();
    let _server = start_postgresql(&lab);
    let work = lab.folder("work");
    let made = lab.shell(&format!(
        "mkdir -p {0}/venv/bin && ln -s /usr/bin/python3 {0}/venv/bin/python && chown -Rh {1} {0} \
         && printf 'home = /usr/bin\\ninclude-system-site-packages = true\\n' > \
         {0}/venv/pyvenv.cfg",
        work.display(),
        lab::host::UID
    ));
    assert_eq!(made, "");
    let link = work.join("venv/bin/python").display().to_string();
    let program = "import psycopg
c = psycopg.connect(host='db.test', user='agent', dbname='postgres')
print(c.execute('select 6 * 7').fetchone()[0])";
    // The policy names the symlink, which the caller made.
    let data = database(5432, &["/usr/bin/python3"]).replace(&python(), &link);
    let run = |grant: &str| {
        let grants = format!("filesystem_policy: {{{grant}: [{}]}}\n", work.display());
        let sandbox = lab
            .sandbox(&(data.clone() + &grants))
            .args(&["--log-level", "info"]);
        sandbox.run(&[&link, "-c", program])
    };
    assert_eq!(run("read_only").ok(), "42");
    let refused = run("read_write");
    assert_ne!(refused.code(), 0);
    let line = format!(
        "{link} is a symlink that users other than root can change; list {} instead",
        python()
    );
    assert!(refused.log.contains(&line), "{}", refused.log);
    assert!(
        refused
            .stderr
            .contains("-> db.test:5432: binary_not_in_policy"),
        "{}",
        refused.stderr
    );
}
