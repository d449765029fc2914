use super::*;
use std::collections::HashSet;

fn workload(asks: &[&str]) -> Workload {
    let asks: Vec<Ask> = asks.iter().map(|ask| ask.parse().expect("a kind")).collect();
    Workload::new(&asks, 3).expect("a workload")
}

fn question(workload: &Workload, asked: Asked) -> Vec<u8> {
    let mut out = Vec::new();
    workload.write_question(asked, &mut out);
    out
}

#[test]
fn kinds_are_read_as_they_are_written() {
    for (text, expected) in [
        ("hosts:10000", Ask { kind: Kind::Hosts(10_000), weight: 1 }),
        ("cached:5=95", Ask { kind: Kind::Cached(5), weight: 95 }),
        ("zipf:9", Ask { kind: Kind::Zipf(9, 1.0), weight: 1 }),
        ("zipf:9:0.8=2", Ask { kind: Kind::Zipf(9, 0.8), weight: 2 }),
        ("miss=5", Ask { kind: Kind::Miss, weight: 5 }),
        ("file:/a/b", Ask { kind: Kind::File("/a/b".into()), weight: 1 }),
    ] {
        assert_eq!(text.parse::<Ask>().expect("a kind"), expected);
    }
    for text in [
        "",
        "hosts",
        "hosts:0",
        "hosts:x",
        "miss:3",
        "miss=0",
        "miss=x",
        "zipf:5:-1",
        "zipf:5:NaN",
        "other:1",
    ] {
        assert!(text.parse::<Ask>().is_err(), "{text}");
    }
}

#[test]
fn a_mix_keeps_its_weights_and_each_part_its_promise() {
    let mut workload = workload(&["cached:10=95", "nxdomain:10=5"]);
    let mut absent = 0;
    for _ in 0..100_000 {
        let asked = workload.draw();
        let question = question(&workload, asked);
        match workload.expect(asked, &question) {
            Expect::Address(address) => {
                assert_eq!(address, address_of(&question[..question.len() - 4]));
                assert!(question.starts_with(b"\x09c0000000"));
            }
            Expect::Rcode(Rcode::NXDOMAIN) => absent += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!((4_500..5_500).contains(&absent), "{absent}");
    let unjudged = workload.clone().unjudged();
    let asked = workload.draw();
    assert_eq!(unjudged.expect(asked, &question(&unjudged, asked)), Expect::Reply);
}

#[test]
fn a_miss_is_asked_once_by_all_threads_together() {
    let all = workload(&["miss"]);
    let mut seen = HashSet::new();
    for thread in 0..3 {
        let mut share = all.share(thread, 3);
        for _ in 0..10_000 {
            assert!(seen.insert(share.draw()), "asked twice");
        }
    }
}

#[test]
fn a_miss_is_asked_once_by_all_slices_together() {
    let all = workload(&["miss"]);
    let (slices, threads) = (20, 2);
    let mut seen = HashSet::new();
    for slice in (0..slices).map(|number| all.slice(number, slices, threads)) {
        for thread in 0..threads {
            let mut share = slice.share(thread, threads);
            assert!((0..1000).all(|_| seen.insert(share.draw())), "asked twice");
        }
    }
}

/// In order, each name is used once in a round.
#[test]
fn each_name_once_a_round() {
    let mut workload = Workload::in_order(&Kind::Cached(5)).expect("a workload");
    let numbers: Vec<_> = (0..7).map(|_| workload.draw().number).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4, 0, 1]);
}

#[test]
fn a_query_has_its_id_and_asks_for_recursion() {
    let mut workload = workload(&["whoami"]);
    let mut out = Vec::new();
    let asked = workload.draw();
    workload.write_query(asked, 0x1234, &mut out);
    assert_eq!(out, b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x02w0\x06whoami\x05bench\0\0\x01\0\x01");
}

/// A line has the question and the expected answer.
#[test]
fn lines_have_question_and_expected_answer() {
    let lines = read_lines(
            "# name type rcode address\n\nwww.example.\nw.example aaaa\nx.example. A NXDOMAIN\ny.example. A NOERROR 10.0.0.1\n",
        )
        .expect("lines");
    let expected: Vec<_> = lines.iter().map(|line| line.expect).collect();
    let address = Ipv4Addr::new(10, 0, 0, 1);
    assert_eq!(
        expected,
        [Expect::Reply, Expect::Reply, Expect::Rcode(Rcode::NXDOMAIN), Expect::Address(address)]
    );
    assert_eq!(*lines[1].question, *b"\x01w\x07example\0\0\x1c\0\x01");
    for (text, error) in [
        ("a..b", "line 1"),
        ("a. NOTYPE", "is not a type"),
        ("a. A WELL", "is not an rcode"),
        ("a. A NXDOMAIN 10.0.0.1", "NOERROR only"),
        ("a. A NOERROR 10.0.0", "is not an IPv4 address"),
        ("a. A NOERROR 10.0.0.1 5", "more than"),
        ("# nothing", "no question"),
    ] {
        let found = format!("{:#}", read_lines(text).expect_err(text));
        assert!(found.contains(error), "{found}");
    }
}
