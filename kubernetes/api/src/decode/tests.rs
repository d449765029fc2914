use proptest::prelude::*;

use super::*;
use crate::objects::MAX_PARTS;

/// Decodes a fuzzer seed: a word for each event, and the error if there is one.
fn decode_seed(
    seed: &[u8],
    kind: Kind,
    encoding: Encoding,
    framing: Framing,
    wants: &WatchConfig,
) -> (String, Result<(), Malformed>) {
    let mut words = Vec::new();
    let mut emit = |version: &str, event: Event| {
        let word = match event {
            Event::Applied(object) => format!("+{:?}", object.kind()),
            Event::Deleted(key) => format!("-{key}"),
            Event::Bookmark { listed } => format!("bookmark:{listed}"),
            Event::Page { next } => format!("page:{next}"),
            Event::Failed(status) => format!("{}:{}:{:?}", status.code, status.retry_after_s, status.causes),
            Event::Filtered => "passed".to_owned(),
            Event::Invalid(what) => format!("?{what}"),
        };
        words.push(format!("{version}{word}"));
    };
    let mut reader = Reader::new(kind, encoding, framing);
    let read = reader.push(&seed[1..], wants, &mut emit).and_then(|()| reader.end(wants, &mut emit));
    (words.join(" "), read)
}

macro_rules! seed {
    ($name:literal) => {
        include_bytes!(concat!("../../../../tests/fuzz/seeds/kubernetes_api/", $name))
    };
}

#[test]
fn decodes_lists_and_watches() {
    use Encoding::{Json, Protobuf};
    use Framing::{List, Watch};
    for (seed, kind, encoding, framing, words) in [
        (
            &seed!("protobuf_list_services")[..],
            Kind::Service,
            Protobuf,
            List,
            "3+Service 3+Service 10page:next",
        ),
        (seed!("protobuf_list_slices"), Kind::Slice, Protobuf, List, "4+Slice 10page:next"),
        (seed!("protobuf_watch_services"), Kind::Service, Protobuf, Watch, "3+Service 3-ns/web"),
        (seed!("protobuf_watch_slices"), Kind::Slice, Protobuf, Watch, "4+Slice 9bookmark:true"),
        (
            seed!("protobuf_watch_pods"),
            Kind::Pod,
            Protobuf,
            Watch,
            "5+Pod 410:1:[\"ResourceVersionTooLarge\"]",
        ),
        (seed!("json_list_services"), Kind::Service, Json, List, "3+Service 3+Service 10page:t"),
        (seed!("json_list_slices"), Kind::Slice, Json, List, "+Slice 10page:"),
        (seed!("json_watch_services"), Kind::Service, Json, Watch, "3+Service 3-ns/web"),
        (seed!("json_watch_imports"), Kind::ServiceImport, Json, Watch, "+ServiceImport"),
        (seed!("json_watch_failed"), Kind::Service, Json, Watch, "410:3:[\"r\"]"),
    ] {
        let read = decode_seed(seed, kind, encoding, framing, &WatchConfig::default());
        assert_eq!(read, (words.to_owned(), Ok(())), "{kind} {encoding:?} {framing:?}");
        let elsewhere = WatchConfig { namespaces: vec!["other".into()], ..WatchConfig::default() };
        let passed = decode_seed(seed, kind, encoding, framing, &elsewhere).0;
        assert!(!passed.contains(['+', '-']), "{passed}");
        // A truncated reply yields its complete events and an error.
        let (part, broken) =
            decode_seed(&seed[..seed.len() - 7], kind, encoding, framing, &WatchConfig::default());
        assert!(words.starts_with(&part) && part != words && broken.is_err(), "{part} {broken:?}");
    }
}

#[test]
fn refuses_oversized_objects() {
    let large = u32::try_from(MAX_OBJECT_BYTES + 1).unwrap().to_be_bytes();
    let read = |octets: &[u8], framing| {
        decode_seed(octets, Kind::Service, Encoding::Protobuf, framing, &WatchConfig::default()).1
    };
    assert_eq!(
        read(&[&[0][..], &large].concat(), Framing::Watch),
        Err(Malformed::TooLarge(MAX_OBJECT_BYTES))
    );
    // An item of 2^30 bytes in a list of 2^31.
    let list = b"\0k8s\0\x12\x80\x80\x80\x80\x08\x12\x80\x80\x80\x80\x04";
    assert_eq!(read(list, Framing::List), Err(Malformed::TooLarge(MAX_OBJECT_BYTES)));
    // A line without an end.
    let mut reader = Reader::new(Kind::Service, Encoding::Json, Framing::Watch);
    let piece = vec![b' '; 1 << 20];
    let pushed = (0..9).try_for_each(|_| reader.push(&piece, &WatchConfig::default(), &mut |_, _| {}));
    assert_eq!(pushed, Err(Malformed::TooLarge(MAX_OBJECT_BYTES)));
}

/// Encodes a protobuf field.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2];
    let mut length = content.len();
    while length >= 0x80 {
        field.push(length as u8 | 0x80);
        length >>= 7;
    }
    field.push(length as u8);
    field.extend_from_slice(content);
    field
}

/// A watch with one event, in either encoding.
fn watch_of(encoding: Encoding, object: &[u8]) -> Vec<u8> {
    event_of(encoding, "ADDED", object)
}

fn event_of(encoding: Encoding, event: &str, object: &[u8]) -> Vec<u8> {
    let watch = match encoding {
        Encoding::Json => [b"\0{\"type\":\"", event.as_bytes(), b"\",\"object\":", object, b"}\n"].concat(),
        Encoding::Protobuf => {
            let envelope = [from_protobuf::MAGIC, &field(2, object)].concat();
            let event = [field(1, event.as_bytes()), field(2, &field(1, &envelope))].concat();
            [&[0], &(event.len() as u32).to_be_bytes()[..], &event].concat()
        }
    };
    assert!(watch.len() < MAX_OBJECT_BYTES);
    watch
}

#[test]
fn invalid_object_is_deleted() {
    // More labels than the limit.
    let labels: Vec<u8> = (0..=MAX_PARTS).flat_map(|_| field(11, &field(1, b"a"))).collect();
    let meta = |more: &[u8]| field(1, &[&field(1, b"web")[..], &field(3, b"t1"), more].concat());
    let json = br#"{"metadata":{"namespace":"t1","name":"web"},"endpoints":5}"#;
    for (encoding, object, why) in [
        (Encoding::Protobuf, meta(&labels), "an object has more than 32768 elements in a field"),
        (Encoding::Protobuf, [meta(b""), vec![0x10, 1]].concat(), "a field has the wrong type"),
        (Encoding::Json, json.to_vec(), ""),
    ] {
        let of = |event: &str| {
            decode_seed(
                &event_of(encoding, event, &object),
                Kind::Slice,
                encoding,
                Framing::Watch,
                &WatchConfig::default(),
            )
        };
        // The known version is outdated.
        for (event, is_gone) in [("DELETED", true), ("ADDED", true), ("MODIFIED", true), ("BOOKMARK", false)]
        {
            let (words, read) = of(event);
            assert_eq!(read, Ok(()));
            assert!(words.starts_with(&format!("?t1/web: {why}")), "{event}: {words}");
            assert_eq!(words.ends_with(" -t1/web"), is_gone, "{event}: {words}");
        }
    }
}

#[test]
fn invalid_object_is_named() {
    use Encoding::{Json, Protobuf};
    let meta = |more: &[u8]| field(1, &[&field(1, b"web")[..], &field(3, b"t1"), more].concat());
    let in_protobuf = |parts: &[&[u8]]| watch_of(Protobuf, &parts.concat());
    let in_json = |text: &str| watch_of(Json, text.as_bytes());
    let long = "x".repeat(254);
    for (kind, encoding, seed, reported_as) in [
        (
            Kind::Service,
            Protobuf,
            in_protobuf(&[&meta(b""), &[0x10, 1]]),
            "t1/web: a field has the wrong type",
        ),
        (
            Kind::Service,
            Protobuf,
            in_protobuf(&[&[0x10, 1], &meta(b"")]),
            "t1/web: a field has the wrong type",
        ),
        (Kind::Slice, Protobuf, in_protobuf(&[&meta(&[0x5a, 9])]), "t1/web: a length exceeds the data"),
        (Kind::Pod, Protobuf, in_protobuf(&[&field(1, &field(1, b"web"))]), "web: no name or no namespace"),
        (Kind::Pod, Protobuf, in_protobuf(&[&field(1, &field(3, b"t1"))]), "t1/: no name or no namespace"),
        (Kind::Pod, Protobuf, in_protobuf(&[]), "an object without a name: no name or no namespace"),
        (
            Kind::Pod,
            Protobuf,
            in_protobuf(&[&field(1, &[field(1, b"\xff"), field(3, b"t1")].concat())]),
            "t1/: a text is not UTF-8",
        ),
        (
            Kind::Service,
            Json,
            in_json(r#"{"metadata":{"name":"web","namespace":"t1"},"spec":{"ports":"none"}}"#),
            "t1/web: invalid type: string \"none\", expected a list of at most 32768 at line 1 column 15",
        ),
        (
            Kind::Service,
            Json,
            in_json(r#"{"metadata":{"name":"web","namespace":"t1","labels":[]}}"#),
            "t1/web: invalid type: sequence, expected texts by name at line 1 column 52",
        ),
        // No control characters.
        (
            Kind::Service,
            Json,
            in_json(r#"{"metadata":{"name":"a\u001b[2J\n\u202eb","namespace":"t1"},"spec":3}"#),
            "t1/a?[2J??b: invalid type: integer `3`, expected struct Spec at line 1 column 1",
        ),
        (
            Kind::Namespace,
            Json,
            in_json(&format!(r#"{{"metadata":{{"name":"{long}"}}}}"#)),
            &*format!("{}: a name has more than 253 bytes", &long[1..]),
        ),
    ] {
        let (words, read) = decode_seed(&seed, kind, encoding, Framing::Watch, &WatchConfig::default());
        // The deletion follows the error.
        let unreadable = words.split(" -").next();
        assert_eq!((unreadable, read), (Some(&*format!("?{reported_as}")), Ok(())), "{encoding:?}");
    }
}

#[test]
fn small_input_makes_small_objects() {
    let named = |more: &[u8]| {
        let meta = field(1, &[field(1, b"n"), field(3, b"ns")].concat());
        watch_of(Encoding::Protobuf, &[meta, more.to_vec()].concat())
    };
    let in_json = |more: &str| {
        let object = format!("{{\"metadata\":{{\"name\":\"n\",\"namespace\":\"ns\"}},{more}}}");
        watch_of(Encoding::Json, object.as_bytes())
    };
    let times = |piece: &[u8], count: usize| piece.repeat(count);
    let list = |piece: &str, count: usize| vec![piece; count].join(",");
    let wants = WatchConfig { endpoints: true, ..WatchConfig::default() };
    for (kind, encoding, seed, readable) in [
        (Kind::Slice, Encoding::Protobuf, named(&times(&field(2, b""), 1_000)), true),
        (Kind::Slice, Encoding::Protobuf, named(&times(&field(2, b""), 4_000_000)), false),
        (Kind::Slice, Encoding::Protobuf, named(&times(&field(3, b""), 4_000_000)), false),
        (Kind::Slice, Encoding::Protobuf, named(&field(2, &times(&field(1, b""), 4_000_000))), false),
        (Kind::Service, Encoding::Protobuf, named(&field(2, &times(&field(1, b""), 4_000_000))), false),
        (Kind::Service, Encoding::Protobuf, named(&field(2, &times(&field(18, b""), 2_000_000))), false),
        (
            Kind::Service,
            Encoding::Protobuf,
            watch_of(Encoding::Protobuf, &field(1, &times(&field(11, b""), 4_000_000))),
            false,
        ),
        (Kind::Slice, Encoding::Json, in_json(&format!("\"endpoints\":[{}]", list("{}", 1_000))), true),
        (Kind::Slice, Encoding::Json, in_json(&format!("\"endpoints\":[{}]", list("{}", 2_000_000))), false),
        (Kind::Slice, Encoding::Json, in_json(&format!("\"ports\":[{}]", list("{}", 2_000_000))), false),
        (
            Kind::Service,
            Encoding::Json,
            in_json(&format!("\"spec\":{{\"clusterIPs\":[{}]}}", list("\"\"", 2_000_000))),
            false,
        ),
        (
            Kind::Service,
            Encoding::Json,
            watch_of(
                Encoding::Json,
                format!("{{\"metadata\":{{\"labels\":{{{}}}}}}}", list("\"\":\"\"", 1_000_000)).as_bytes(),
            ),
            false,
        ),
        // A hostname that is not a label is not stored for each address.
        (
            Kind::Slice,
            Encoding::Json,
            in_json(&format!(
                "\"endpoints\":[{{\"hostname\":\"{}\",\"addresses\":[{}]}}]",
                "x".repeat(4_000_000),
                list("\"192.0.2.1\"", 100)
            )),
            true,
        ),
        // Names that are too long.
        (
            Kind::Namespace,
            Encoding::Json,
            watch_of(
                Encoding::Json,
                format!("{{\"metadata\":{{\"name\":\"{}\"}}}}", "x".repeat(254)).as_bytes(),
            ),
            false,
        ),
    ] {
        let mut reader = Reader::new(kind, encoding, Framing::Watch);
        let (mut applied, mut unreadable, mut kept) = (0, 0, 0);
        let read = reader.push(&seed[1..], &wants, &mut |_, event| match event {
            Event::Applied(object) => {
                applied += 1;
                if let Object::Slice(slice) = object {
                    let names = slice.endpoints.iter().filter_map(|endpoint| endpoint.hostname.as_ref());
                    kept += names.map(|name| name.len()).sum::<usize>();
                }
            }
            Event::Invalid(_) => unreadable += 1,
            Event::Deleted(_) => {}
            other => panic!("{other:?}"),
        });
        assert_eq!(
            (read, applied == 1, unreadable == 0, kept),
            (Ok(()), readable, readable, 0),
            "{kind} {encoding:?}"
        );
    }
}

/// Decodes a reply in chunks.
fn in_pieces<'a>(
    (kind, encoding, framing): (Kind, Encoding, Framing),
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<String>, Result<(), Malformed>) {
    let (mut reader, mut events) = (Reader::new(kind, encoding, framing), Vec::new());
    let mut emit = |version: &str, event: Event| events.push(format!("{version} {event:?}"));
    let wants = WatchConfig { endpoints: true, ..WatchConfig::default() };
    let pushed = pieces.into_iter().try_for_each(|piece| {
        reader.push(piece, &wants, &mut emit)?;
        let is_lines = (encoding, framing) == (Encoding::Json, Framing::Watch);
        assert!(!is_lines || reader.searched == reader.pending.len(), "each byte is searched once");
        Ok(())
    });
    let read = pushed.and_then(|()| reader.end(&wants, &mut emit));
    (events, read)
}

proptest! {
    #[test]
    fn chunk_boundaries_do_not_matter(cuts in proptest::collection::vec(0usize..2_000, 0..40)) {
        use Encoding::{Json, Protobuf};
        use Framing::{List, Watch};
        let lines = [&seed!("json_watch_services")[1..], b"\n\n  \n", &seed!("json_watch_failed")[1..]].concat();
        for (of, reply) in [
            ((Kind::Service, Json, Watch), &lines[..]),
            ((Kind::Service, Json, List), &seed!("json_list_services")[1..]),
            ((Kind::Slice, Protobuf, List), &seed!("protobuf_list_slices")[1..]),
            ((Kind::Slice, Protobuf, Watch), &seed!("protobuf_watch_slices")[1..]),
        ] {
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut % (reply.len() + 1)).chain([0, reply.len()]).collect();
            cuts.sort_unstable();
            let pieces = cuts.windows(2).map(|ends| &reply[ends[0]..ends[1]]);
            let whole = in_pieces(of, [reply]);
            prop_assert!(!whole.0.is_empty());
            prop_assert_eq!(in_pieces(of, pieces), whole);
        }
    }
}

#[test]
fn searches_long_lines_once() {
    let of = (Kind::Service, Encoding::Json, Framing::Watch);
    let line = watch_of(
        Encoding::Json,
        format!(
            "{{\"metadata\":{{\"name\":\"n\",\"namespace\":\"ns\",\"labels\":{{\"l\":\"{}\"}}}}}}",
            "x".repeat(1 << 20)
        )
        .as_bytes(),
    );
    let (events, read) = in_pieces(of, line[1..].chunks(1));
    assert_eq!((events.len(), read), (1, Ok(())));
}
