use std::io::Cursor;

use super::packet::kind;
use super::serve;

/// Returns a packet with these parts.
fn packet(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    let body: Vec<u8> = std::iter::once(&[kind][..])
        .chain(parts.iter().copied())
        .flatten()
        .copied()
        .collect();
    [&u32::try_from(body.len()).unwrap().to_be_bytes()[..], &body].concat()
}

fn text(bytes: &[u8]) -> Vec<u8> {
    [
        &u32::try_from(bytes.len()).unwrap().to_be_bytes()[..],
        bytes,
    ]
    .concat()
}

/// Returns the kind, the id and the other bytes of each reply.
fn replies(input: &[u8]) -> Vec<(u8, u32, Vec<u8>)> {
    let mut output = Vec::new();
    let _ = serve(Cursor::new(input), &mut output);
    let mut rest = &output[..];
    let mut found = Vec::new();
    while !rest.is_empty() {
        let length = u32::from_be_bytes(rest[..4].try_into().unwrap()) as usize;
        let body = &rest[4..4 + length];
        found.push((
            body[0],
            u32::from_be_bytes(body[1..5].try_into().unwrap()),
            body[5..].to_vec(),
        ));
        rest = &rest[4 + length..];
    }
    found
}

const ID: [u8; 4] = [0, 0, 0, 7];

#[test]
fn a_client_that_says_nothing_else_gets_the_version_and_extensions() {
    let found = replies(&packet(kind::INIT, &[&[0, 0, 0, 3]]));
    assert_eq!((found[0].0, found[0].1), (kind::VERSION, 3));
    assert!(
        found[0]
            .2
            .windows(24)
            .any(|name| name == b"posix-rename@openssh.com")
    );
}

#[test]
fn files_with_any_name_are_written_listed_read_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_str().unwrap().as_bytes();
    let name = [root, b"/\xff\xfe name"].concat();
    let handle = text(&[0, 0, 0, 0]);
    let input = [
        packet(kind::OPEN, &[&ID, &text(&name), &[0, 0, 0, 2 | 8], &[0; 4]]),
        packet(
            kind::WRITE,
            &[&ID, &handle, &3_u64.to_be_bytes(), &text(b"data")],
        ),
        packet(kind::CLOSE, &[&ID, &handle]),
        packet(kind::OPENDIR, &[&ID, &text(root)]),
        packet(kind::READDIR, &[&ID, &text(&[0, 0, 0, 1])]),
        packet(kind::READDIR, &[&ID, &text(&[0, 0, 0, 1])]),
        packet(kind::OPEN, &[&ID, &text(&name), &[0, 0, 0, 1], &[0; 4]]),
        packet(
            kind::READ,
            &[&ID, &text(&[0, 0, 0, 2]), &[0; 8], &100_u32.to_be_bytes()],
        ),
        packet(
            kind::READ,
            &[
                &ID,
                &text(&[0, 0, 0, 2]),
                &7_u64.to_be_bytes(),
                &100_u32.to_be_bytes(),
            ],
        ),
        packet(kind::REMOVE, &[&ID, &text(&name)]),
        packet(kind::LSTAT, &[&ID, &text(&name)]),
    ]
    .concat();
    let found = replies(&input);
    let kinds: Vec<_> = found.iter().map(|(kind, ..)| *kind).collect();
    let status = kind::STATUS;
    let end = [0, 0, 0, 1];
    let handle = kind::HANDLE;
    assert_eq!(
        kinds,
        [
            handle,
            status,
            status,
            handle,
            kind::NAME,
            status,
            handle,
            kind::DATA,
            status,
            status,
            status
        ]
    );
    assert!(found[4].2.windows(7).any(|part| part == b"\xff\xfe name"));
    assert_eq!(found[5].2[..4], end);
    assert_eq!(found[7].2, text(b"\0\0\0data"));
    assert_eq!(found[8].2[..4], end);
    assert_eq!(found[10].2[..4], [0, 0, 0, 2]);
}

#[test]
fn renaming_replaces_nothing_unless_asked_to() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("a"), "a").unwrap();
    std::fs::write(path("b"), "b").unwrap();
    let word = |name: &str| text(path(name).to_str().unwrap().as_bytes());
    let found = replies(
        &[
            packet(kind::RENAME, &[&ID, &word("a"), &word("b")]),
            packet(
                kind::EXTENDED,
                &[
                    &ID,
                    &text(b"posix-rename@openssh.com"),
                    &word("a"),
                    &word("b"),
                ],
            ),
        ]
        .concat(),
    );
    assert_eq!(
        (&found[0].2[..4], &found[1].2[..4]),
        (&[0, 0, 0, 4][..], &[0, 0, 0, 0][..])
    );
    assert_eq!(std::fs::read_to_string(path("b")).unwrap(), "a");
}

#[test]
fn requests_that_make_no_sense_are_answered_and_the_next_one_too() {
    let long = vec![b'x'; 5000];
    let input = [
        packet(kind::READ, &[&ID, &text(b"none"), &[0; 12]]),
        packet(kind::READ, &[&ID, &text(&[9, 9, 9, 9]), &[0; 12]]),
        packet(kind::STAT, &[&ID, &text(b"a\0b")]),
        packet(kind::STAT, &[&ID, &text(&long)]),
        packet(kind::STAT, &[&ID, &[0, 0, 9, 9]]),
        packet(kind::OPEN, &[&ID, &text(b"/"), &[0; 4], &[0; 4]]),
        packet(99, &[&ID]),
        packet(kind::EXTENDED, &[&ID, &text(b"nothing@example")]),
        packet(kind::STAT, &[&ID, &text(b"/")]),
    ]
    .concat();
    let found = replies(&input);
    assert_eq!(found.len(), 9);
    assert!(
        found[..8]
            .iter()
            .all(|(kind, id, body)| (*kind, *id) == (kind::STATUS, 7) && body[3] != 0),
        "{found:?}"
    );
    assert_eq!(found[8].0, kind::ATTRS);
}

/// Returns true if no packet of `input`, divided as the server divides it, changes a file.
fn is_harmless(mut input: &[u8]) -> bool {
    const HARMLESS: &[u8] = &[
        kind::INIT,
        kind::CLOSE,
        kind::READ,
        kind::LSTAT,
        kind::FSTAT,
        kind::OPENDIR,
        kind::READDIR,
        kind::REALPATH,
        kind::STAT,
        kind::READLINK,
        99,
    ];
    while let Some((length, rest)) = input.split_first_chunk() {
        let length = u32::from_be_bytes(*length) as usize;
        if rest.first().is_some_and(|kind| !HARMLESS.contains(kind)) {
            return false;
        }
        input = rest.get(length..).unwrap_or_default();
    }
    true
}

#[test]
fn fuzzed_packets_end_or_are_answered() {
    let kinds = [1, 4, 5, 7, 8, 11, 12, 16, 17, 19, 99];
    let of_kind = |kind| packet(kind, &[&ID, &text(b"/etc"), &text(&[0, 0, 0, 0]), &[0; 24]]);
    let single: Vec<_> = kinds.map(of_kind).to_vec();
    let all = [
        packet(kind::OPENDIR, &[&ID, &text(b"/etc")]),
        packet(kind::READDIR, &[&ID, &text(&[0; 4])]),
    ]
    .concat();
    let samples: Vec<&[u8]> = single.iter().map(Vec::as_slice).chain([&all[..]]).collect();
    let words: [&[u8]; 4] = [
        b"\0\0\0\x04\0\0\0\0",
        b"/",
        b"\xff\xff\xff\xff",
        b"\0\0\0\x05\x0c\0\0\0\x01",
    ];
    fuzz::fuzz("sftp", &samples, &words, |input| {
        if is_harmless(input) {
            let mut output = Vec::new();
            let _ = serve(Cursor::new(input), &mut output);
        }
    });
}
