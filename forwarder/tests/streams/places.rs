//! The quota on an upstream's connections: no client takes all of it, and a query that timed out
//! takes none.

use forwarder::ExchangeError;
use tokio::io::{AsyncRead, AsyncWrite};

use super::order::number;
use super::*;

/// Answers IDs from 10,000 at once, and the others after the query 20,000.
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

/// Sends unanswered queries, and returns how many of them were refused at once.
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
    // The rest of the quota is shared, too.
    let refused = fill(&mut asker, 2_500..3_000).await;
    assert!((150..200).contains(&refused), "{refused}");
    asker.client = 3;
    asker.ask(10_100).await;
}

/// The connections of given-up queries are closed, and their places are free.
#[tokio::test]
async fn given_up_queries_take_no_place() {
    let (address, _) = server(|_, stream| answer_others(stream)).await;
    let mut asker = Asker::new(address, None);
    (asker.connect, asker.deadline) = (ms(3_000), ms(60_000));
    assert_eq!(fill(&mut asker, 0..2_500).await, 2_500 - ONE_CLIENT);
    let (mut sent, mut waited) = (0, 0);
    for _ in 0..ONE_CLIENT {
        match asker.next().await.1.unwrap_err() {
            ExchangeError::Overloaded { .. } => waited += 1,
            error if is_timeout(&error) => sent += 1,
            error => panic!("{error:?}"),
        }
    }
    // The queries that were sent got no answer; the others waited for a connection.
    assert!((1..=64).contains(&sent), "{sent} sent, {waited} not");
    asker.until_connections_are(0).await;
    asker.connect = ms(30_000);
    assert_eq!(fill(&mut asker, 0..ONE_CLIENT as u64).await, 0);
    asker.client = 2;
    asker.ask(10_000).await;
}

/// Answers IDs from 10,000, and nothing behind another query.
async fn answer_in_order(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    loop {
        let query = read_frame(&mut stream).await?;
        if number(&query) < 10_000 {
            return std::future::pending().await;
        }
        write_frame(&mut stream, &answer(&query)).await?;
    }
}

/// A query waits behind silent queries of its client, until a client with free quota sends it too.
#[tokio::test]
async fn joined_query_uses_the_other_clients_quota() {
    let (address, _) = server(|_, stream| answer_in_order(stream)).await;
    let mut asker = Asker::new(address, None);
    assert_eq!(fill(&mut asker, 0..100).await, 0);
    asker.send(10_000);
    let waiting = asker.upstream.metrics().waiting_for_connection();
    for (client, leaves) in [(1, 0), (2, 1)] {
        let (id, client) = (ExchangeId::from_bits(10_000), ClientId::of(client));
        asker.streams.join(7, &asker.upstream, asker.kind, asker.limits, id, client);
        assert_eq!(asker.upstream.metrics().waiting_for_connection(), waiting - leaves);
    }
    let (id, result) = asker.next().await;
    assert_eq!(id, 10_000);
    assert_is_answer(id, &result.unwrap());
}

/// A query that reached the upstream only late in its time fails like one that was not sent.
#[tokio::test]
async fn query_sent_late_is_not_the_upstreams_failure() {
    let (address, _) = server(|_, stream| swallow(stream)).await;
    let mut asker = Asker::new(address, None);
    for (connect, late) in [(4_000, false), (2_000, true)] {
        asker.connect = ms(connect);
        asker.send(connect);
        let error = asker.next().await.1.unwrap_err();
        assert_eq!(matches!(error, ExchangeError::Overloaded { .. }), late, "{error:?}");
        assert_eq!(is_timeout(&error), !late, "{error:?}");
    }
}

/// One client's share of the queries to one upstream: four fifths of 2,045.
const ONE_CLIENT: usize = 1_636;
