use super::*;
use proptest::prelude::*;

#[test]
fn text_and_wire_roundtrip() {
    for (text, wire) in [
        (".", &b"\0"[..]),
        ("Example.ORG.", b"\x07example\x03org\0"),
        ("example.org", b"\x07example\x03org\0"),
        ("a\\.b.c", b"\x03a.b\x01c\0"),
        ("\\.\\065\\B.c\\.", b"\x03.ab\x02c.\0"),
        ("\\000x.", b"\x02\0x\0"),
        ("_dns-1.\\@.", b"\x06_dns-1\x01@\0"),
    ] {
        let name = Name::from_text(text).unwrap();
        assert_eq!(name.as_wire(), wire, "{text}");
        assert_eq!(Name::from_text(&name.to_string()).unwrap(), name);
    }
}

#[test]
fn invalid_text_errors() {
    let long_label = "a".repeat(64);
    let escaped_label = format!("{}\\.", "a".repeat(63));
    let long_name = "abcdefg.".repeat(32);
    // The first error is reported: the label's in this row, the name's in the next.
    let label_first = format!("{}{}", "abcdefg.".repeat(23), "a".repeat(100));
    let name_first = format!("{}{}", "abcdefg.".repeat(24), "a".repeat(100));
    for (text, error) in [
        ("", NameError::EmptyLabel),
        ("..", NameError::EmptyLabel),
        ("a..b", NameError::EmptyLabel),
        (".a", NameError::EmptyLabel),
        (long_label.as_str(), NameError::LongLabel),
        (escaped_label.as_str(), NameError::LongLabel),
        (long_name.as_str(), NameError::LongName),
        (label_first.as_str(), NameError::LongLabel),
        (name_first.as_str(), NameError::LongName),
        ("a\\", NameError::Escape),
        ("a\\25", NameError::Escape),
        ("a\\256", NameError::Escape),
    ] {
        assert_eq!(Name::from_text(text).unwrap_err(), error, "{text}");
    }
}

#[test]
fn every_length_is_lowered() {
    let wire = |length: usize, letter: u8| {
        let mut wire = Vec::new();
        while wire.len() + 1 < length {
            // No label leaves one octet, which could be none.
            let label = (length - wire.len() - 2).min(if length - wire.len() == 66 { 62 } else { 63 });
            wire.push(label as u8);
            wire.extend(std::iter::repeat_n(letter, label));
        }
        wire.push(0);
        wire
    };
    for length in [1].into_iter().chain(3..=MAX_NAME) {
        let packet = [&b"before"[..], &wire(length, b'Z'), b"BEHIND"].concat();
        let (name, end) = Name::read_plain(&packet, 6).unwrap();
        assert_eq!((name.as_wire(), end), (&wire(length, b'z')[..], 6 + length), "{length}");
    }
}

/// From text, wire form and packets.
#[test]
fn equal_names_have_equal_hashes() {
    let mut hashes = std::collections::HashSet::new();
    for length in 1..=253usize {
        let text: String = (0..length)
            .map(|at| if at % 50 == 49 { '.' } else { (b'a' + (at % 26) as u8) as char })
            .collect();
        let Some(name) = Name::from_text(&text).ok().filter(|_| !text.ends_with('.')) else { continue };
        let (upper, _) = Name::read_plain(&name.as_wire().to_ascii_uppercase(), 0).unwrap();
        let compressed = Name::read(name.as_wire(), 0).unwrap().0;
        for same in [upper, compressed, Name::from_wire(name.as_wire()).unwrap()] {
            assert_eq!(same, name, "{text}");
            assert_eq!(same.hash_code(), hash_of(name.as_wire()), "{text}");
        }
        // Read in place of another name, from text.
        let mut again = upper;
        again.fill_text(b"other.example").unwrap();
        assert_eq!(again.hash_code(), hash_of(again.as_wire()));
        assert!(hashes.insert(name.hash_code()), "{text}");
        // Each octet counts.
        for at in (0..length).filter(|&at| text.as_bytes()[at] != b'.') {
            let mut other = text.clone().into_bytes();
            other[at] = b'_';
            let other = Name::from_text(std::str::from_utf8(&other).unwrap()).unwrap();
            assert_ne!(other.hash_code(), name.hash_code(), "{other}");
        }
    }
    assert!(hashes.len() > 240);
}

#[test]
fn length_limit_is_255() {
    let longest = format!("{}{}", "abcdefg.".repeat(31), "abcde.");
    assert_eq!(Name::from_text(&longest).unwrap().as_wire().len(), 255);
    let longer = format!("{}{}", "abcdefg.".repeat(31), "abcdef.");
    assert_eq!(Name::from_text(&longer).unwrap_err(), NameError::LongName);
}

#[test]
fn is_within_compares_labels() {
    for (name, zone, within) in [
        ("a.example.org", "example.org", true),
        ("example.org", "example.org", true),
        ("aexample.org", "example.org", false),
        ("org", "example.org", false),
        ("anything", ".", true),
        (".", ".", true),
        (".", "org", false),
    ] {
        let (name, zone) = (Name::from_text(name).unwrap(), Name::from_text(zone).unwrap());
        assert_eq!(name.is_within(&zone), within, "{name} in {zone}");
    }
}

#[test]
fn pointers_must_point_backwards() {
    let mut message = vec![0; 12];
    message.extend_from_slice(b"\x07example\x03org\0"); // 12
    message.extend_from_slice(b"\x01a\xc0\x0c"); // 25
    message.extend_from_slice(b"\xc0\x1d"); // 29: to itself
    message.extend_from_slice(b"\xc0\x02"); // 31: into the header
    let (name, end) = Name::read(&message, 25).unwrap();
    assert_eq!((name.to_string().as_str(), end), ("a.example.org.", 29));
    assert_eq!(Name::read(&message, 29).unwrap_err(), NameError::Pointer);
    assert_eq!(Name::read(&message, 31).unwrap_err(), NameError::Pointer);
    assert_eq!(Name::read_plain(&message, 25).unwrap_err(), NameError::Pointer);
}

proptest! {
    #[test]
    fn read_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300), at in 0usize..310) {
        let _ = Name::read(&bytes, at);
        let _ = Name::read_plain(&bytes, at);
        let _ = skip(&bytes, at);
    }

    #[test]
    fn fast_and_slow_text_parsers_agree(text in "([a-zA-Z0-9_*-]{0,66}\\.?){0,8}|[a-zA-Z.]{240,260}") {
        let any = Name::from_any_text(text.as_bytes());
        // The old name must not show.
        let mut name = Name::from_text("other.names.example.org").unwrap();
        if name.fill_plain_text(text.as_bytes()).is_some() {
            prop_assert_eq!((Ok(name), Ok(name.labels)), (any, any.map(|any| any.labels)));
        }
        prop_assert_eq!(name.fill_text(text.as_bytes()), any.map(|_| ()));
        prop_assert_eq!(name, any.unwrap_or(Name::ROOT));
        prop_assert_eq!(Name::from_text(&text), any);
    }

    #[test]
    fn any_text_parses_or_fails(text in "[a-zA-Z0-9.\\\\-]{0,300}") {
        if let Ok(name) = Name::from_text(&text) {
            prop_assert_eq!(Name::from_text(&name.to_string()).unwrap(), name);
            prop_assert_eq!(Name::from_wire(name.as_wire()).unwrap(), name);
            for read in [name, Name::from_wire(name.as_wire()).unwrap(), Name::read(name.as_wire(), 0).unwrap().0] {
                prop_assert_eq!(read.label_count(), name.labels().count());
            }
        }
    }
}
