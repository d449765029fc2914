//! Target: responses of the Kubernetes API.

use kubernetes_api::decode::{Encoding, Event, Framing, Malformed, Reader, status};
use kubernetes_api::{Kind, Object, PodWatch, WatchConfig};

/// Checks that a list or a watch is parsed or refused, and that the result does not depend on the
/// sizes of the pieces. The first byte selects kind, encoding and shape.
pub fn kubernetes_api(octets: &[u8]) {
    let Some((first, octets)) = octets.split_first() else { return };
    let kind = Kind::ALL[usize::from(first & 7) % Kind::ALL.len()];
    let encoding = if first & 8 == 0 { Encoding::Json } else { Encoding::Protobuf };
    let framing = if first & 16 == 0 { Framing::List } else { Framing::Watch };
    let whole = read(kind, encoding, framing, octets, octets.len().max(1));
    for piece in [1, 7] {
        assert_eq!(read(kind, encoding, framing, octets, piece), whole, "in pieces of {piece}");
    }
    for (_, event) in &whole.0 {
        if let Event::Applied(Object::Slice(slice)) = event {
            assert!(slice.endpoints.len() + slice.ports.len() <= octets.len(), "more than there was");
        }
    }
    if let Ok(status) = status(encoding, octets) {
        assert!(status.message.len() <= octets.len());
    }
}

type Decoded = (Vec<(String, Event)>, Result<(), Malformed>);

fn read(kind: Kind, encoding: Encoding, framing: Framing, octets: &[u8], piece: usize) -> Decoded {
    let wants = WatchConfig {
        endpoints: true,
        pod_names: true,
        zones: true,
        imports: true,
        pods: Some(PodWatch { node: None, labels: vec!["app".into()] }),
        ..WatchConfig::default()
    };
    let (mut reader, mut events) = (Reader::new(kind, encoding, framing), Vec::new());
    let mut emit = |version: &str, event| events.push((version.to_owned(), event));
    let pushed = octets.chunks(piece).try_for_each(|piece| reader.push(piece, &wants, &mut emit));
    let read = pushed.and_then(|()| reader.end(&wants, &mut emit));
    (events, read)
}
