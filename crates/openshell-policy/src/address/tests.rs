use super::{AddressClass, AddressRange};
use crate::violation::ViolationKind;

fn class(text: &str) -> AddressClass {
    AddressClass::of(
        text.parse()
            .unwrap_or_else(|error| panic!("{text}: {error}")),
    )
}

// Conformance: IPS-16.
#[test]
fn internal_addresses_are_internal_in_every_form() {
    for v4 in [
        "10.0.0.1",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "100.64.0.1",
        "100.127.255.255",
        "192.0.0.1",
        "198.18.0.1",
        "198.19.255.255",
        "198.51.100.1",
        "203.0.113.1",
    ] {
        assert!(class(v4).is_internal(), "{v4}");
        assert!(class(&format!("::ffff:{v4}")).is_internal(), "mapped {v4}");
    }
    for v6 in ["fc00::1", "fdff::1", "fe80::1", "febf::1", "::1", "::"] {
        assert!(class(v6).is_internal(), "{v6}");
    }
}

// Conformance: IPS-16.
#[test]
fn public_addresses_are_public() {
    for text in [
        "8.8.8.8",
        "172.32.0.1",
        "100.128.0.1",
        "2606:4700::1111",
        "2002:0808:0808::1",
        "64:ff9b::808:808",
    ] {
        assert_eq!(class(text), AddressClass::Public, "{text}");
    }
}

// Conformance: IPS-17.
#[test]
fn special_addresses_and_embeddings_are_internal() {
    for text in [
        "192.0.2.1",
        "255.255.255.255",
        "224.0.0.1",
        "240.0.0.1",
        "64:ff9b::a00:1",
        "::10.0.0.1",
        "::ffff:0:10.0.0.1",
        "2002:0a00:0001::1",
        "ff02::1",
        "2001:db8::1",
        "64:ff9b:1::1",
        "100::1",
    ] {
        assert!(class(text).is_internal(), "{text}");
    }
}

// Conformance: IPS-18.
#[test]
fn never_reachable_addresses_are_blocked_in_every_form() {
    for text in [
        "127.0.0.1",
        "127.255.255.255",
        "169.254.169.254",
        "0.0.0.0",
        "0.1.2.3",
        "::1",
        "::",
        "fe80::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "fd00:ec2::254",
        "fd00:ec2::23",
        "fd20:ce::254",
        "168.63.129.16",
        "100.100.100.200",
        "192.0.0.192",
        "::ffff:168.63.129.16",
        "::168.63.129.16",
        "64:ff9b::a83f:8110",
        "64:ff9b::6464:64c8",
        "2002:c000:c0::1",
        "64:ff9b:1::a9fe:a9fe",
        "64:ff9b:1::7f00:1",
        "64:ff9b:1::a83f:8110",
        "64:ff9b:1:a9fe:a9:fe00::",
        "64:ff9b:1:a9:fe:a9fe::",
        "64:ff9b:1:0:a9:fea9:fe00:0",
        "224.0.0.1",
        "239.255.255.250",
        "255.255.255.255",
        "ff02::1",
        "ff05::2",
        "64:ff9b::e000:1",
    ] {
        assert!(class(text).is_always_blocked(), "{text}");
    }
}

#[test]
fn what_is_beside_an_address_that_is_never_reachable_may_be_listed() {
    for text in [
        "168.63.129.17",
        "100.100.100.201",
        "192.0.0.193",
        "fd00:ec2::253",
        "64:ff9b:1::a00:1",
        "240.0.0.1",
    ] {
        assert!(!class(text).is_always_blocked(), "{text}");
        assert!(AddressRange::parse(text).is_ok(), "{text}");
    }
    // A single address is blocked when it is connected to; the range around it has a use.
    assert!(
        AddressRange::parse("100.64.0.0/10").is_ok() && AddressRange::parse("fd00::/8").is_ok()
    );
}

// Conformance: IPS-11.
#[test]
fn ranges_that_touch_blocked_addresses_are_refused() {
    for text in [
        "168.63.129.16",
        "100.100.100.200/32",
        "224.0.0.0/8",
        "ff02::/16",
        "fd20:ce::254",
    ] {
        assert_eq!(
            AddressRange::parse(text),
            Err(ViolationKind::AddressAlwaysBlocked(text.to_owned())),
            "{text}"
        );
    }
    for text in [
        "127.0.0.0/8",
        "127.0.0.1",
        "0.0.0.0/0",
        "::/0",
        "169.254.0.0/16",
        "fe80::/10",
        "::ffff:127.0.0.0/104",
    ] {
        assert_eq!(
            AddressRange::parse(text),
            Err(ViolationKind::AddressAlwaysBlocked(text.to_owned())),
            "{text}"
        );
    }
}

// Conformance: IPS-12.
#[test]
fn what_is_no_address_is_refused() {
    for text in ["not-an-ip", "", "10.0.0", "10.0.0.0/33", "010.0.0.1"] {
        assert_eq!(
            AddressRange::parse(text),
            Err(ViolationKind::AddressInvalid(text.to_owned())),
            "{text}"
        );
    }
}

#[test]
fn a_mapped_range_is_the_range_it_stands_for() {
    let range =
        AddressRange::parse("::ffff:10.1.0.0/112").unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(range.to_string(), "10.1.0.0/16");
    assert!(range.contains("10.1.2.3".parse().unwrap_or_else(|error| panic!("{error}"))));
    assert!(
        range.contains(
            "::ffff:10.1.2.3"
                .parse()
                .unwrap_or_else(|error| panic!("{error}"))
        )
    );
}
