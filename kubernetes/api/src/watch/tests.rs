use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use super::*;
use crate::objects::{Object, ObjectKey};
use crate::settings::Access;

#[test]
fn a_token_that_is_not_accepted_is_waited_for_until_it_is_another() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    std::fs::write(&file, "one").unwrap();
    let refused = |credentials| Some(Refused { credentials, who: Some("Bearer one".into()) });
    let of_file = || refused(Credentials::TokenFile(file.clone()));
    let now = || tokio::time::Instant::now().into_std();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let soon = || now() + 2 * LOOK_AT_TOKEN;
        assert_eq!(wait(now, soon(), of_file()).await, Over::Time, "it is the same");
        let far = now() + Duration::from_secs(3_600);
        let publish = async { std::fs::write(&file, "two").unwrap() };
        let (over, ()) = tokio::join!(wait(now, far, of_file()), publish);
        assert_eq!(over, Over::Another);
        for other in [None, refused(Credentials::Fixed("Bearer two".into()))] {
            assert_eq!(wait(now, soon(), other).await, Over::Time, "no file says another");
        }
    });
}

/// What a sink was told.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Service,
    Namespace(Box<str>),
    Settled,
    /// A list of services begins.
    Begun,
}

/// Tells what it is told, takes this long for each change of a service, and after the first wants a list of all of them if it is
/// to.
struct Telling {
    told: mpsc::Sender<Told>,
    takes: Duration,
    wants_list: bool,
}

impl Sink for Telling {
    fn begin(&mut self, kind: Kind) {
        if kind == Kind::Service {
            let _ = self.told.send(Told::Begun);
        }
    }
    fn wants_list(&mut self, kind: Kind) -> bool {
        kind == Kind::Service && std::mem::take(&mut self.wants_list)
    }
    fn apply(&mut self, object: Object) {
        let _ = self.told.send(match object {
            Object::Namespace(name) => Told::Namespace(name),
            _ => Told::Service,
        });
        thread::sleep(self.takes);
    }
    fn delete(&mut self, _: Kind, _: ObjectKey) {}
    fn settle(&mut self, kind: Kind) {
        if kind == Kind::Service {
            let _ = self.told.send(Told::Settled);
        }
    }
    fn complete(&mut self, _: Kind) {}
    fn following(&mut self, _: Kind) {}
    fn lost(&mut self, _: Kind, _: &Lost) {}
}

/// Follows services and namespaces at an API whose watches go on as `services` and `namespaces` write them.
fn follow_scripted(
    (takes, wants_list): (Duration, bool),
    services: impl Fn(TcpStream) + Send + Sync + 'static,
    namespaces: impl Fn(TcpStream) + Send + Sync + 'static,
) -> (Following, Receiver<Told>) {
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
    let (told, heard) = mpsc::channel();
    let settings = Settings {
        access: Access::Endpoint { url, tls: None },
        wants: Wants::default(),
        pace: Pace::default(),
        now: || tokio::time::Instant::now().into_std(),
    };
    (follow(settings, Box::new(Telling { told, takes, wants_list })).unwrap(), heard)
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
fn a_stream_that_always_has_something_leaves_others_their_turn() {
    let seen = Arc::new(AtomicUsize::new(0));
    let sees = seen.clone();
    let (following, told) = follow_scripted(
        (Duration::from_millis(2), false),
        |mut stream| while stream.write_all(change("Service", "web").as_bytes()).is_ok() {},
        move |mut stream| {
            while sees.load(SeqCst) < 50 {
                thread::yield_now();
            }
            stream.write_all(change("Namespace", "late").as_bytes()).unwrap();
            let at = sees.load(SeqCst);
            // Until the other side ends it.
            let _ = stream.read(&mut [0]);
            assert!(at >= 50);
        },
    );
    let mut changes = 0;
    loop {
        match told.recv_timeout(Duration::from_secs(30)).expect("changes come") {
            Told::Service => changes = seen.fetch_add(1, SeqCst) + 1,
            Told::Namespace(name) => break assert_eq!(&*name, "late"),
            Told::Settled | Told::Begun => {}
        }
        assert!(changes < 200, "a change of another kind waits for each of these");
    }
    drop(following);
}

#[test]
fn what_comes_at_once_is_told_as_such() {
    const MANY: usize = 20;
    let burst = change("Service", "web").repeat(MANY);
    let (following, told) = follow_scripted(
        (Duration::ZERO, false),
        move |mut stream| {
            stream.write_all(burst.as_bytes()).unwrap();
            let _ = stream.read(&mut [0]);
        },
        |mut stream| _ = stream.read(&mut [0]),
    );
    let (mut changes, mut settled) = (0, 0);
    while changes < MANY || settled == 0 {
        match told.recv_timeout(Duration::from_secs(30)).expect("all is settled") {
            Told::Service => changes += 1,
            Told::Settled if changes > 0 => settled += 1,
            told => assert!(matches!(told, Told::Settled | Told::Begun), "{told:?}"),
        }
    }
    assert!(settled <= MANY / 2, "{settled} times for {MANY} changes that come together");
    drop(following);
}

#[test]
fn what_found_no_room_is_listed_again_once_there_is_room() {
    let (following, told) = follow_scripted(
        (Duration::ZERO, true),
        |mut stream| {
            let _ = stream.write_all(change("Service", "web").as_bytes());
            let _ = stream.read(&mut [0]);
        },
        |mut stream| _ = stream.read(&mut [0]),
    );
    let until =
        |wanted: Told| while told.recv_timeout(Duration::from_secs(30)).expect("it is told") != wanted {};
    [Told::Begun, Told::Begun, Told::Service].into_iter().for_each(until);
    drop(following);
}
