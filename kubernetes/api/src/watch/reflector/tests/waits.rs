//! Delays before requests.

use super::*;

#[test]
fn error_statuses_and_backoff() {
    for (status, why) in [
        (401, "failed: the API rejects the credentials: no"),
        (403, "failed: may not watch namespaces: no"),
        (404, "failed: the API has no namespaces: no"),
        (500, "failed: 500 from the API: no"),
    ] {
        let mut script = Script::new();
        let waits: Vec<_> = (0..9)
            .map(|_| {
                assert_eq!(script.ask(), WATCH_LIST);
                script.head(status);
                script.body(&failure(status, ""));
                script.end();
                assert_eq!(script.calls(), [why]);
                script.wait().as_millis()
            })
            .collect();
        let expected = match status {
            // Another token may be available at any time: retried within 5 s including jitter.
            401 => [200, 400, 800, 1_600, 3_200, 3_333, 3_333, 3_333, 3_333],
            _ => [200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000],
        };
        assert_eq!(waits, expected, "{status}");
        // A long reply resets the backoff.
        script.follow();
        script.pass(Duration::from_secs(30));
        script.reflector.failed(script.now, &WatchError::Silent(MS), &mut script.calls);
        assert_eq!(script.wait(), 200 * MS);
    }
    // A busy API sends Retry-After, in the reply or in its head; it is limited to our own maximum.
    for (header, body, wait) in [(None, 7, 7), (Some(9), 0, 9), (Some(9_000), 0, 30), (None, u64::MAX, 30)] {
        let mut script = Script::new();
        script.ask();
        let encoding = if body == 0 { "text/plain" } else { "application/json" };
        script.reflector.head(script.now, 429, encoding, header, &mut script.calls).unwrap();
        script.body(&format!("{{\"details\":{{\"retryAfterSeconds\":{body}}}}}"));
        script.end();
        assert_eq!(script.wait(), Duration::from_secs(wait));
    }
}

#[test]
fn backoff_classes_are_independent() {
    for (status, why) in [
        (410, "failed: resource version expired: no"),
        (403, "failed: may not watch namespaces: no"),
        (503, "failed: 503 from the API: no"),
    ] {
        let mut script = Script::new();
        script.follow();
        script.pass(Duration::from_secs(600));
        let refused = WatchError::Connection {
            address: "api".into(),
            cause: "refused".into(),
            at: ConnectionFault::Network,
        };
        let waits: Vec<_> = (0..9)
            .map(|_| {
                script.reflector.failed(script.now, &refused, &mut script.calls);
                script.wait().as_millis()
            })
            .collect();
        assert_eq!(waits, [200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000, 10_000]);
        script.calls();
        let mut wait = 200 * MS;
        for _ in 0..4 {
            script.ask();
            script.head(status);
            script.body(&failure(status, ""));
            script.end();
            assert_eq!(script.calls(), [why]);
            assert_eq!(script.wait(), wait, "{status}");
            // Repeated errors have the delay.
            wait *= 2;
        }
    }
}

#[test]
fn backs_off_after_invalid_replies() {
    let mut script = Script::new();
    script.ask();
    let refused = script.reflector.head(script.now, 200, "text/html", None, &mut script.calls);
    assert_eq!(refused.unwrap_err().to_string(), "invalid reply: text/html");
    for body in ["<html>\n", "{}\n", "\u{1}\n", "{\"type\":\"ADDED\",\"object\":3}\n", "[1]\n"] {
        let mut script = Script::new();
        for wait in [200, 400] {
            script.ask();
            script.head(200);
            script.body(body);
            script.end();
            assert_eq!(script.wait(), wait * MS, "{body}");
        }
    }
    // Invalid objects are skipped.
    let mut script = Script::new();
    script.follow();
    let odd = "{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":3}}}\n";
    script.body(
        &(odd.to_owned() + &event("ADDED", "", 11) + &event("DELETED", "", 12) + &event("WHAT", "x", 13)),
    );
    script.body(&(event("ADDED", "c", 14) + "\n"));
    assert_eq!(
        script.calls(),
        [
            "an object without a name: invalid type: integer `3`, expected a string at line 1 column 21",
            "an object without a name: no name or no namespace",
            "an object without a name: no name or no namespace",
            "x: an event has an unknown type",
            "+c"
        ]
    );
    // A watch that ends at once is delayed, and so is a list without a version.
    script.pass(Duration::from_secs(60));
    script.end();
    script.ask();
    script.head(200);
    script.end();
    assert_eq!(script.calls(), ["watching", "failed: invalid reply: the watch ended at once"]);
    script.wait();
    let mut script = Script::new();
    script.ask();
    script.head(200);
    script.body(&listed(0).replace("\"0\"", "\"\""));
    assert_eq!(script.calls(), ["begin", "failed: invalid reply: the list has no resource version"]);
    // An endless error reply is read up to its limit.
    let mut script = Script::new();
    script.ask();
    script.head(500);
    let rest =
        |script: &mut Script| script.reflector.body(script.now, &[b' '; 40_000], &mut script.calls).unwrap();
    assert_eq!((rest(&mut script), rest(&mut script)), (ReadMore::Yes, ReadMore::No));
}

#[test]
fn backs_off_after_short_watches() {
    for body in [event("BOOKMARK", "", 11), event("ADDED", "a", 11), String::new()] {
        let mut script = Script::new();
        script.follow();
        let mut watch = |lives: Duration| {
            script.ask();
            script.head(200);
            script.body(&body);
            script.pass(lives);
            script.end();
            let waits = matches!(script.reflector.next(script.now), Next::Wait(_));
            if waits { script.wait() } else { Duration::ZERO }
        };
        let waits: Vec<_> = (0..4).map(|_| watch(10 * MS).as_millis()).collect();
        assert_eq!(waits, [200, 400, 800, 1_600], "{body}");
        assert_eq!(watch(Duration::from_secs(2)), Duration::ZERO, "{body}");
        assert_eq!(watch(10 * MS), 3_200 * MS, "{body}: two seconds do not reset the backoff");
        assert_eq!(watch(Duration::from_secs(6)), Duration::ZERO, "{body}");
        assert_eq!(watch(10 * MS), 200 * MS, "{body}");
    }
}
