//! Places on an upstream's connections: no client takes all of them, and each is freed once no
//! client waits.

use forwarder::ExchangeError;
use tokio::io::{AsyncRead, AsyncWrite};

use super::order::number;
use super::*;

/// Answers all ids from 10,000 on, and those below once it receives 20,000.
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

/// Sends queries that get no reply; returns the number refused at once.
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
    // The remaining places are shared as well.
    let refused = fill(&mut asker, 2_500..3_000).await;
    assert!((150..200).contains(&refused), "{refused}");
    asker.client = 3;
    asker.ask(10_100).await;
}

/// Its connection is closed, and both places are free for others.
#[tokio::test]
async fn given_up_queries_take_no_place() {
    let (address, _) = server(|_, stream| answer_others(stream)).await;
    let mut asker = Asker::new(address, None);
    (asker.connect, asker.deadline) = (ms(1_000), ms(60_000));
    assert_eq!(fill(&mut asker, 0..2_500).await, 2_500 - ONE_CLIENT);
    for _ in 0..ONE_CLIENT {
        assert!(is_timeout(&asker.next().await.1.unwrap_err()));
    }
    asker.until_connections_are(0).await;
    asker.connect = ms(30_000);
    assert_eq!(fill(&mut asker, 0..ONE_CLIENT as u64).await, 0);
    asker.client = 2;
    asker.ask(10_000).await;
}

/// Maximum number of one client's queries to one upstream: four fifths of 2,045.
const ONE_CLIENT: usize = 1_636;
