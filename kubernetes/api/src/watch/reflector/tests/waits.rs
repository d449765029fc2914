//! How long it waits before it asks again.

use super::*;

#[test]
fn refusals_are_named_and_waits_double() {
    for (status, why) in [
        (401, "lost: the API does not accept who asks: no"),
        (403, "lost: may not watch namespaces: no"),
        (404, "lost: the API has no namespaces: no"),
        (500, "lost: 500 from the API: no"),
    ] {
        let mut script = Script::new();
        let waits: Vec<_> = (0..9)
            .map(|_| {
                assert_eq!(script.ask(), WATCH_LIST);
                script.head(status);
                script.body(&failure(status, ""));
                script.end();
                assert_eq!(script.told(), [why]);
                script.wait().as_millis()
            })
            .collect();
        let expected = match status {
            // Another token may be there at any moment; with the jitter it is tried within 5 s.
            401 => [200, 400, 800, 1_600, 3_200, 3_333, 3_333, 3_333, 3_333],
            _ => [200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000],
        };
        assert_eq!(waits, expected, "{status}");
        // What is served for long begins anew.
        script.follow();
        script.pass(Duration::from_secs(30));
        script.follower.failed(script.now, &Lost::Silent(MS), &mut script.told);
        assert_eq!(script.wait(), 200 * MS);
    }
    // An API that is busy says when to come again, in the reply or in its head; what it says is no longer than our own bound.
    for (header, body, wait) in [(None, 7, 7), (Some(9), 0, 9), (Some(9_000), 0, 30), (None, u64::MAX, 30)] {
        let mut script = Script::new();
        script.ask();
        let form = if body == 0 { "text/plain" } else { "application/json" };
        script.follower.head(script.now, 429, form, header, &mut script.told).unwrap();
        script.body(&format!("{{\"details\":{{\"retryAfterSeconds\":{body}}}}}"));
        script.end();
        assert_eq!(script.wait(), Duration::from_secs(wait));
    }
}

#[test]
fn an_api_that_is_back_is_asked_again_as_soon_as_one_that_never_was_gone() {
    for (status, why) in [
        (410, "lost: the API has forgotten what was heard last: no"),
        (403, "lost: may not watch namespaces: no"),
        (503, "lost: 503 from the API: no"),
    ] {
        let mut script = Script::new();
        script.follow();
        script.pass(Duration::from_secs(600));
        let refused = Lost::Connection { address: "api".into(), cause: "refused".into(), at: Fault::Way };
        let waits: Vec<_> = (0..9)
            .map(|_| {
                script.follower.failed(script.now, &refused, &mut script.told);
                script.wait().as_millis()
            })
            .collect();
        assert_eq!(waits, [200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000, 10_000]);
        script.told();
        let mut wait = 200 * MS;
        for _ in 0..4 {
            script.ask();
            script.head(status);
            script.body(&failure(status, ""));
            script.end();
            assert_eq!(script.told(), [why]);
            assert_eq!(script.wait(), wait, "{status}");
            // One that says so again and again has its time.
            wait *= 2;
        }
    }
}

#[test]
fn an_api_that_speaks_nonsense_is_asked_again_later_and_again_later() {
    let mut script = Script::new();
    script.ask();
    let refused = script.follower.head(script.now, 200, "text/html", None, &mut script.told);
    assert_eq!(refused.unwrap_err().to_string(), "the reply makes no sense: text/html");
    for said in ["<html>\n", "{}\n", "\u{1}\n", "{\"type\":\"ADDED\",\"object\":3}\n", "[1]\n"] {
        let mut script = Script::new();
        for wait in [200, 400] {
            script.ask();
            script.head(200);
            script.body(said);
            script.end();
            assert_eq!(script.wait(), wait * MS, "{said}");
        }
    }
    // Objects that are none are left out, and what follows them is not.
    let mut script = Script::new();
    script.follow();
    let odd = "{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":3}}}\n";
    script.body(
        &(odd.to_owned() + &event("ADDED", "", 11) + &event("DELETED", "", 12) + &event("WHAT", "x", 13)),
    );
    script.body(&(event("ADDED", "c", 14) + "\n"));
    assert_eq!(
        script.told(),
        [
            "one without a name: invalid type: integer `3`, expected a string at line 1 column 21",
            "one without a name: no name, or no namespace",
            "one without a name: no name, or no namespace",
            "x: an event of an unknown type",
            "+c"
        ]
    );
    // A watch that ends at once is not asked for at once; nor is a list that has no version.
    script.pass(Duration::from_secs(60));
    script.end();
    script.ask();
    script.head(200);
    script.end();
    assert_eq!(script.told(), ["following", "lost: the reply makes no sense: a watch ended at once"]);
    script.wait();
    let mut script = Script::new();
    script.ask();
    script.head(200);
    script.body(&listed(0).replace("\"0\"", "\"\""));
    assert_eq!(script.told(), ["begin", "lost: the reply makes no sense: a list without a resource version"]);
    // An endless refusal is read no further than it may say something.
    let mut script = Script::new();
    script.ask();
    script.head(500);
    let rest =
        |script: &mut Script| script.follower.body(script.now, &[b' '; 40_000], &mut script.told).unwrap();
    assert_eq!((rest(&mut script), rest(&mut script)), (Rest::Wanted, Rest::Unwanted));
}

#[test]
fn watches_that_end_at_once_are_asked_for_less_and_less_whatever_they_told() {
    for told in [event("BOOKMARK", "", 11), event("ADDED", "a", 11), String::new()] {
        let mut script = Script::new();
        script.follow();
        let mut watch = |lives: Duration| {
            script.ask();
            script.head(200);
            script.body(&told);
            script.pass(lives);
            script.end();
            let waits = matches!(script.follower.next(script.now), Next::Wait(_));
            if waits { script.wait() } else { Duration::ZERO }
        };
        let waits: Vec<_> = (0..4).map(|_| watch(10 * MS).as_millis()).collect();
        assert_eq!(waits, [200, 400, 800, 1_600], "{told}");
        assert_eq!(watch(Duration::from_secs(2)), Duration::ZERO, "{told}");
        assert_eq!(watch(10 * MS), 3_200 * MS, "{told}: two seconds are no proof");
        assert_eq!(watch(Duration::from_secs(6)), Duration::ZERO, "{told}");
        assert_eq!(watch(10 * MS), 200 * MS, "{told}");
    }
}
