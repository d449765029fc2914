//! Places on an upstream's connections: no client takes all of them, and none is kept for whom nobody waits.

use forwarder::ExchangeError;
use tokio::io::{AsyncRead, AsyncWrite};

use super::*;

/// Answers but for ids below 10,000, and answers these once it is asked for 20,000.
async fn answer_others(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    let mut kept = Vec::new();
    loop {
        let query = read_frame(&mut stream).await?;
        match number(&query) {
            0..10_000 => kept.push(query),
            other => {
                write_frame(&mut stream, &answer(&query)).await?;
                let late = if other == 20_000 { std::mem::take(&mut kept) } else { Vec::new() };
                for query in late {
                    write_frame(&mut stream, &answer(&query)).await?;
                }
            }
        }
    }
}

/// What [`Asker::send`] made the name of.
fn number(query: &[u8]) -> u64 {
    let label = &query[13..][..usize::from(query[12])];
    std::str::from_utf8(&label[1..]).unwrap().parse().unwrap()
}

/// Sends as many silent queries, and says how many of them were refused at once.
async fn fill(asker: &mut Asker, ids: std::ops::Range<u64>) -> usize {
    let before = asker.results.len();
    ids.for_each(|id| asker.send(id));
    let refused = asker.results.len() - before;
    for _ in 0..refused {
        let result = asker.next().await.1;
        assert!(matches!(result, Err(ExchangeError::Overloaded { .. })), "{result:?}");
    }
    refused
}

#[tokio::test]
async fn a_client_with_silent_queries_leaves_places_for_others() {
    let (address, _) = server(|_, stream| answer_others(stream)).await;
    let mut asker = Asker::new(address, None);
    assert_eq!(fill(&mut asker, 0..2_500).await, 2_500 - ONE_CLIENT);
    asker.client = 2;
    for id in 10_000..10_100 {
        asker.ask(id).await;
    }
    // What is left is not for one alone either.
    let refused = fill(&mut asker, 2_500..3_000).await;
    assert!((150..200).contains(&refused), "{refused}");
    asker.client = 3;
    asker.ask(10_100).await;
}

#[tokio::test]
async fn a_query_that_nobody_waits_for_takes_no_place_and_its_late_reply_comes() {
    let (address, _) = server(|_, stream| answer_others(stream)).await;
    let mut asker = Asker::new(address, None);
    (asker.connect, asker.deadline) = (ms(1_000), ms(60_000));
    assert_eq!(fill(&mut asker, 0..2_500).await, 2_500 - ONE_CLIENT);
    asker.connect = ms(30_000);
    let (mut id, mut refused) = (10_000, 0);
    // Places are given back before the first query has timed out.
    loop {
        asker.send(id);
        match asker.next().await {
            (got, Ok(reply)) => break assert_is_answer(got, &reply),
            (got, Err(ExchangeError::Overloaded { .. })) => assert_eq!(got, id),
            (got, Err(error)) => panic!("{got}: {error}"),
        }
        (id, refused) = (id + 1, refused + 1);
        tokio::task::yield_now().await;
    }
    assert!(refused > 0, "all were waited for");
    asker.send(20_000);
    for late in [false, true] {
        let (got, result) = asker.next().await;
        assert_is_answer(got, &result.unwrap());
        assert_eq!(got < 10_000, late, "{got}");
    }
}

/// Of 16 connections with 128 places each, 2,048, one client has four fifths.
const ONE_CLIENT: usize = 1_636;
