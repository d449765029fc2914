use super::*;

/// What a seed of the fuzzer says, an event a word; and whether it was read to its end.
fn told(seed: &[u8], kind: Kind, form: Form, shape: Shape, wants: &Wants) -> (String, Result<(), Malformed>) {
    let mut words = Vec::new();
    let mut tell = |version: &str, event: Event| {
        let word = match event {
            Event::Applied(object) => format!("+{:?}", object.kind()),
            Event::Deleted(key) => format!("-{key}"),
            Event::Bookmark { listed } => format!("bookmark:{listed}"),
            Event::Page { next } => format!("page:{next}"),
            Event::Failed(status) => format!("{}:{}:{:?}", status.code, status.retry_after_s, status.causes),
            Event::Passed => "passed".to_owned(),
            Event::Unreadable => "unreadable".to_owned(),
        };
        words.push(format!("{version}{word}"));
    };
    let mut reader = Reader::new(kind, form, shape);
    let read = reader.push(&seed[1..], wants, &mut tell).and_then(|()| reader.end(wants, &mut tell));
    (words.join(" "), read)
}

macro_rules! seed {
    ($name:literal) => {
        include_bytes!(concat!("../../../fuzz/seeds/kubernetes_api/", $name))
    };
}

#[test]
fn lists_and_watches_are_read_event_by_event() {
    use Form::{Json, Protobuf};
    use Shape::{List, Watch};
    for (seed, kind, form, shape, words) in [
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
        let read = told(seed, kind, form, shape, &Wants::default());
        assert_eq!(read, (words.to_owned(), Ok(())), "{kind} {form:?} {shape:?}");
        let elsewhere = Wants { namespaces: vec!["other".into()], ..Wants::default() };
        let passed = told(seed, kind, form, shape, &elsewhere).0;
        assert!(!passed.contains(['+', '-']), "{passed}");
        // What breaks off is told as far as it was whole, and that it broke off.
        let (part, broken) = told(&seed[..seed.len() - 7], kind, form, shape, &Wants::default());
        assert!(words.starts_with(&part) && part != words && broken.is_err(), "{part} {broken:?}");
    }
}

#[test]
fn what_is_larger_than_an_object_can_be_is_not_waited_for() {
    let large = u32::try_from(MOST_OBJECT + 1).unwrap().to_be_bytes();
    let read = |octets: &[u8], shape| told(octets, Kind::Service, Form::Protobuf, shape, &Wants::default()).1;
    assert_eq!(read(&[&[0][..], &large].concat(), Shape::Watch), Err(Malformed::TooLarge(MOST_OBJECT)));
    // An item of 2^30 octets in a list of 2^31.
    let list = b"\0k8s\0\x12\x80\x80\x80\x80\x08\x12\x80\x80\x80\x80\x04";
    assert_eq!(read(list, Shape::List), Err(Malformed::TooLarge(MOST_OBJECT)));
    // A line that does not end.
    let mut reader = Reader::new(Kind::Service, Form::Json, Shape::Watch);
    let piece = vec![b' '; 1 << 20];
    let pushed = (0..9).try_for_each(|_| reader.push(&piece, &Wants::default(), &mut |_, _| {}));
    assert_eq!(pushed, Err(Malformed::TooLarge(MOST_OBJECT)));
}
