//! The choice of a connection: no query waits for another's answer while a new connection is
//! possible.

use std::sync::atomic::AtomicUsize;

use super::*;

/// Answers the queries of each connection in order, like servers built on miekg/dns; never those
/// with IDs below 1,000.
async fn answer_in_order(mut stream: TcpStream) -> io::Result<()> {
    loop {
        let query = read_frame(&mut stream).await?;
        if number(&query) < 1_000 {
            return swallow(stream).await;
        }
        write_frame(&mut stream, &answer(&query)).await?;
    }
}

/// Answers each query independently; never those with IDs below 1,000.
async fn answer_out_of_order(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    loop {
        let query = read_frame(&mut stream).await?;
        if number(&query) >= 1_000 {
            write_frame(&mut stream, &answer(&query)).await?;
        }
    }
}

/// Returns the number in the name that [`Asker::send`] made.
pub(super) fn number(query: &[u8]) -> u64 {
    let label = &query[13..][..usize::from(query[12])];
    std::str::from_utf8(&label[1..]).unwrap().parse().unwrap()
}

/// Ten unanswered queries hold ten connections, and delay no others.
#[tokio::test]
async fn slow_queries_delay_no_others() {
    let (address, accepted) = server(|_, stream| answer_in_order(stream)).await;
    let mut asker = Asker::new(address, None);
    for slow in 0..10 {
        asker.send(slow);
        for id in 0..20 {
            asker.ask(1_000 + 100 * slow + id).await;
        }
    }
    assert!(accepted.load(Ordering::SeqCst) <= 11 + 1, "the idle one is used again");
}

/// One client's slow queries leave connections for other clients, and do not delay their queries.
#[tokio::test]
async fn one_client_leaves_connections_to_others() {
    let (address, _) = server(|_, stream| answer_in_order(stream)).await;
    let mut asker = Asker::new(address, None);
    asker.limits.max_connections = 16;
    (0..200).for_each(|slow| asker.send(slow));
    asker.client = 2;
    for id in 1_000..1_100 {
        asker.ask(id).await;
    }
    assert!(asker.streams.connections() <= 16);
    assert!(asker.upstream.metrics().waiting_for_connection() >= 180);
}

/// At the limit queries wait, and each is sent when a connection is idle.
#[tokio::test]
async fn queries_wait_for_an_idle_connection() {
    let (address, accepted) = server(|_, stream| answer_in_order(stream)).await;
    let mut asker = Asker::new(address, None);
    asker.limits.max_connections = 4;
    asker.connect = ms(3_000);
    asker.send(0);
    (1_000..1_100).for_each(|id| asker.send(id));
    let mut answered = 0;
    for _ in 0..101 {
        match asker.next().await {
            (0, result) => assert!(matches!(result, Err(ExchangeError::Timeout { .. }))),
            (id, result) => {
                assert_is_answer(id, &result.unwrap());
                answered += 1;
            }
        }
    }
    assert_eq!(answered, 100);
    assert!(accepted.load(Ordering::SeqCst) <= 5);
}

/// Queries to an upstream that answers out of order are pipelined, until a reply is held up.
#[tokio::test]
async fn out_of_order_is_learned_and_forgotten() {
    let (address, accepted) = server(|_, stream| answer_out_of_order(stream)).await;
    let mut asker = Asker::new(address, None);
    asker.ask(1_000).await;
    asker.send(0);
    tokio::time::sleep(ms(20)).await;
    assert!(!asker.upstream.metrics().pipelines());
    asker.ask(1_001).await;
    let learned = async {
        while !asker.upstream.metrics().pipelines() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(ms(5_000), learned).await.expect("a copy of the last query overtook the first");
    let before = accepted.load(Ordering::SeqCst);
    (1..10).for_each(|id| asker.send(id));
    (1_002..1_030).for_each(|id| asker.send(id));
    let mut left = 28;
    while left > 0 {
        let (id, result) = asker.next().await;
        // The second of two replies, to the copy and to the query, has no effect.
        if id >= 1_002 {
            assert_is_answer(id, &result.unwrap());
            left -= 1;
        }
    }
    assert!(accepted.load(Ordering::SeqCst) <= before + 2, "they share connections");
}

/// An upstream that stops answering out of order: queries behind a slow one move to other
/// connections.
#[tokio::test]
async fn queries_behind_a_slow_one_move() {
    static ORDERED: AtomicUsize = AtomicUsize::new(0);
    let (address, _) = server(|_, stream| async move {
        match ORDERED.load(Ordering::SeqCst) {
            0 => answer_out_of_order(stream).await,
            _ => answer_in_order(stream).await,
        }
    })
    .await;
    let mut asker = Asker::new(address, None);
    asker.limits.expire = ms(50);
    asker.ask(1_000).await;
    asker.send(0);
    tokio::time::sleep(ms(20)).await;
    asker.ask(1_001).await;
    while !asker.upstream.metrics().pipelines() {
        tokio::task::yield_now().await;
    }
    ORDERED.store(1, Ordering::SeqCst);
    asker.streams.cancel(7, &asker.upstream, asker.kind, ExchangeId::from_bits(0));
    asker.until_connections_are(0).await;
    (1..3).for_each(|id| asker.send(id));
    (1_002..1_040).for_each(|id| asker.send(id));
    let mut seen = std::collections::HashSet::new();
    while seen.len() < 38 {
        let (id, result) = asker.next().await;
        if id >= 1_002 {
            assert_is_answer(id, &result.unwrap());
            seen.insert(id);
        }
    }
    assert!(!asker.upstream.metrics().pipelines());
}

/// Forty queries at once for an upstream that closes after each reply, like aardvark-dns.
#[tokio::test]
async fn an_upstream_that_closes_after_each_reply_answers_all() {
    for limit in [8, 64] {
        let (address, _) = server(|_, mut stream| async move {
            let query = read_frame(&mut stream).await?;
            write_frame(&mut stream, &answer(&query)).await
        })
        .await;
        let mut asker = Asker::new(address, None);
        asker.limits.max_connections = limit;
        for round in 0..5 {
            (0..40).for_each(|id| asker.send(100 * round + id));
            for _ in 0..40 {
                let (id, result) = asker.next().await;
                assert_is_answer(id, &result.unwrap());
            }
        }
    }
}

/// An upstream with few connections closes the others at once: it is not down.
#[tokio::test]
async fn an_upstream_with_few_places_answers_all() {
    static OPEN: AtomicUsize = AtomicUsize::new(0);
    let (address, accepted) = server(|_, mut stream| async move {
        if OPEN.fetch_add(1, Ordering::SeqCst) < 4 {
            while let Ok(query) = read_frame(&mut stream).await {
                tokio::time::sleep(ms(2)).await;
                write_frame(&mut stream, &answer(&query)).await?;
            }
        }
        OPEN.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    })
    .await;
    let mut asker = Asker::new(address, None);
    // The limit is lower at first, so that some connections have answered before more are refused.
    asker.limits.max_connections = 4;
    (0..20).for_each(|id| asker.send(id));
    for _ in 0..20 {
        asker.next().await.1.unwrap();
    }
    asker.limits.max_connections = 64;
    (100..200).for_each(|id| asker.send(id));
    for _ in 0..100 {
        let (id, result) = asker.next().await;
        assert_is_answer(id, &result.unwrap());
    }
    assert!(accepted.load(Ordering::SeqCst) < 80, "it is not asked for connections again and again");
}

/// A connection is closed when its only query is cancelled.
#[tokio::test]
async fn a_cancelled_query_closes_its_connection() {
    let (address, _) = server(|_, stream| swallow(stream)).await;
    let asker = Asker::new(address, None);
    asker.send(1);
    asker.until_connections_are(1).await;
    asker.streams.cancel(7, &asker.upstream, asker.kind, ExchangeId::from_bits(1));
    asker.until_connections_are(0).await;
}
