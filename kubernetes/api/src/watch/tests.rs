use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use super::*;
use crate::objects::{Object, ObjectKey};
use crate::settings::Access;

#[test]
fn new_token_ends_the_wait() {
    let directory = tempfile::tempdir().unwrap();
    let file = files::ShownPath::from(directory.path().join("token"));
    std::fs::write(&file, "one").unwrap();
    let refused = |credentials| Some(RejectedCredentials { credentials, header: Some("Bearer one".into()) });
    let of_file = || refused(Credentials::TokenFile(file.clone()));
    let now = || tokio::time::Instant::now().into_std();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let soon = || now() + 2 * TOKEN_POLL_INTERVAL;
        assert_eq!(wait(now, soon(), of_file()).await, WaitEnd::Elapsed, "the token is the same");
        let far = now() + Duration::from_secs(3_600);
        let publish = async { std::fs::write(&file, "two").unwrap() };
        let (end, ()) = tokio::join!(wait(now, far, of_file()), publish);
        assert_eq!(end, WaitEnd::NewToken);
        for other in [None, refused(Credentials::Fixed("Bearer two".into()))] {
            assert_eq!(wait(now, soon(), other).await, WaitEnd::Elapsed, "not a token file");
        }
    });
}

/// A call of the sink.
#[derive(Debug, PartialEq, Eq)]
enum Call {
    Service,
    Namespace(Box<str>),
    Settled,
    /// `begin` for services.
    Begun,
}

/// Sends its calls to the test, sleeps for each change of a service, and demands a relist once.
struct ScriptedSink {
    calls: mpsc::Sender<Call>,
    takes: Duration,
    wants_list: bool,
}

impl Sink for ScriptedSink {
    fn begin(&mut self, kind: Kind) {
        if kind == Kind::Service {
            let _ = self.calls.send(Call::Begun);
        }
    }
    fn needs_relist(&mut self, kind: Kind) -> bool {
        kind == Kind::Service && std::mem::take(&mut self.wants_list)
    }
    fn apply(&mut self, object: Object) {
        let _ = self.calls.send(match object {
            Object::Namespace(name) => Call::Namespace(name),
            _ => Call::Service,
        });
        thread::sleep(self.takes);
    }
    fn delete(&mut self, _: Kind, _: ObjectKey) {}
    fn end_batch(&mut self, kind: Kind) {
        if kind == Kind::Service {
            let _ = self.calls.send(Call::Settled);
        }
    }
    fn complete(&mut self, _: Kind) {}
    fn watching(&mut self, _: Kind) {}
    fn failed(&mut self, _: Kind, _: &WatchError) {}
}

/// Watches services and namespaces at an API with watches written by `services` and `namespaces`.
fn follow_scripted(
    (takes, wants_list): (Duration, bool),
    services: impl Fn(TcpStream) + Send + Sync + 'static,
    namespaces: impl Fn(TcpStream) + Send + Sync + 'static,
) -> (WatchHandle, Receiver<Call>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap()).into();
    thread::spawn(move || {
        let scripts: [Arc<dyn Fn(TcpStream) + Send + Sync>; 2] = [Arc::new(services), Arc::new(namespaces)];
        for stream in listener.incoming().take(2 * scripts.len()) {
            let (mut stream, scripts) = (stream.unwrap(), scripts.clone());
            thread::spawn(move || {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let mut octet = [0];
                    stream.read_exact(&mut octet).unwrap();
                    head.push(octet[0]);
                }
                let is_of_namespaces = head.starts_with(b"GET /api/v1/namespaces?");
                let reply =
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
                let listed = r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"1","annotations":{"k8s.io/initial-events-end":"true"}}}}"#;
                stream.write_all(format!("{reply}{}", chunk(listed)).as_bytes()).unwrap();
                scripts[usize::from(is_of_namespaces)](stream);
            });
        }
    });
    let (sender, calls) = mpsc::channel();
    let settings = ClientSettings {
        access: Access::Endpoint { url, tls: None },
        wants: WatchConfig::default(),
        pace: RateLimit::default(),
        now: || tokio::time::Instant::now().into_std(),
    };
    (follow(settings, Box::new(ScriptedSink { calls: sender, takes, wants_list })).unwrap(), calls)
}

fn chunk(line: &str) -> String {
    format!("{:x}\r\n{line}\n\r\n", line.len() + 1)
}

fn change(kind: &str, name: &str) -> String {
    let version = r#""resourceVersion":"2""#;
    let metadata = format!(r#"{{"namespace":"t1","name":"{name}",{version}}}"#);
    let spec = r#"{"clusterIP":"10.0.0.1","clusterIPs":["10.0.0.1"]}"#;
    chunk(&format!(
        r#"{{"type":"MODIFIED","object":{{"kind":"{kind}","metadata":{metadata},"spec":{spec}}}}}"#
    ))
}

#[test]
fn busy_watch_yields() {
    let seen = Arc::new(AtomicUsize::new(0));
    let sees = seen.clone();
    let (client, calls) = follow_scripted(
        (Duration::from_millis(2), false),
        |mut stream| while stream.write_all(change("Service", "web").as_bytes()).is_ok() {},
        move |mut stream| {
            while sees.load(SeqCst) < 50 {
                thread::yield_now();
            }
            stream.write_all(change("Namespace", "late").as_bytes()).unwrap();
            let at = sees.load(SeqCst);
            // Until the client closes it.
            let _ = stream.read(&mut [0]);
            assert!(at >= 50);
        },
    );
    let mut changes = 0;
    loop {
        match calls.recv_timeout(Duration::from_secs(30)).expect("changes arrive") {
            Call::Service => changes = seen.fetch_add(1, SeqCst) + 1,
            Call::Namespace(name) => break assert_eq!(&*name, "late"),
            Call::Settled | Call::Begun => {}
        }
        assert!(changes < 200, "another kind waits for all of these");
    }
    drop(client);
}

#[test]
fn batches_available_changes() {
    const MANY: usize = 20;
    let burst = change("Service", "web").repeat(MANY);
    let (client, calls) = follow_scripted(
        (Duration::ZERO, false),
        move |mut stream| {
            stream.write_all(burst.as_bytes()).unwrap();
            let _ = stream.read(&mut [0]);
        },
        |mut stream| _ = stream.read(&mut [0]),
    );
    let (mut changes, mut settled) = (0, 0);
    while changes < MANY || settled == 0 {
        match calls.recv_timeout(Duration::from_secs(30)).expect("the batch ends") {
            Call::Service => changes += 1,
            Call::Settled if changes > 0 => settled += 1,
            call => assert!(matches!(call, Call::Settled | Call::Begun), "{call:?}"),
        }
    }
    assert!(settled <= MANY / 2, "{settled} batches for {MANY} changes");
    drop(client);
}

#[test]
fn relists_after_memory_limit() {
    let (client, calls) = follow_scripted(
        (Duration::ZERO, true),
        |mut stream| {
            let _ = stream.write_all(change("Service", "web").as_bytes());
            let _ = stream.read(&mut [0]);
        },
        |mut stream| _ = stream.read(&mut [0]),
    );
    let until = |wanted: Call| {
        while calls.recv_timeout(Duration::from_secs(30)).expect("the sink is called") != wanted {}
    };
    [Call::Begun, Call::Begun, Call::Service].into_iter().for_each(until);
    drop(client);
}
