//! A real API for the measurement and its objects: etcd and kube-apiserver, started by the scripts
//! in `tests/kube`.

use std::collections::HashMap;
use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::https::{Access, Connection};
use crate::compare::process::signal;
use load::clock::Clock;

/// A function that returns the objects of a number: paths and contents.
type Objects<'o> = dyn Fn(u32) -> Vec<(String, Value)> + Sync + 'o;

/// A running API, which is stopped on drop; its objects stay in the directory `state`.
pub(super) struct Api {
    state: PathBuf,
    pub(super) access: Access,
    /// The kubeconfig for servers.
    pub(super) kubeconfig: PathBuf,
}

/// The number of objects of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) services: u32,
    pub(super) endpoints: u32,
}

impl Api {
    /// Starts the API with the objects in `state`.
    ///
    /// # Errors
    /// When the API's programs are not built, or it does not start.
    pub(super) fn start(state: &Path) -> Result<Self> {
        let printed = script("up", state)?;
        let variables: HashMap<&str, &str> = printed
            .lines()
            .filter_map(|line| line.strip_prefix("export ").and_then(|pair| pair.split_once('=')))
            .collect();
        let of = |name: &str| {
            variables.get(name).copied().with_context(|| format!("tests/kube/up prints no {name}"))
        };
        let address = of("KUBE_API")?.trim_start_matches("https://").parse().context("KUBE_API")?;
        Ok(Self {
            state: state.to_owned(),
            access: Access::new(address, Path::new(of("KUBE_CA")?), of("KUBE_TOKEN")?)?,
            kubeconfig: of("KUBE_DNS_KUBECONFIG")?.into(),
        })
    }

    /// Kills the API; etcd stays.
    ///
    /// # Errors
    /// When it does not end.
    pub(super) fn lose(&self) -> Result<()> {
        let file = self.state.join("kube-apiserver.pid");
        let pid = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let pid: u32 = pid.trim().parse().with_context(|| file.display().to_string())?;
        signal("KILL", [pid]);
        let clock = Clock::start();
        // The port is free only once the whole process is gone, some time after its memory.
        let listens = || TcpStream::connect(self.access.address).is_ok();
        while Path::new(&format!("/proc/{pid}/exe")).exists() || listens() {
            ensure!(clock.now_ns() < END_MAX.as_nanos() as u64, "the API does not end");
            thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Starts the API again, after which every watch must list again.
    ///
    /// # Errors
    /// When it does not start.
    pub(super) fn restart(&self) -> Result<()> {
        script("up", &self.state).map(drop)
    }

    /// Creates an object; an existing one is no error.
    ///
    /// # Errors
    /// When the API refuses it.
    pub(super) fn create_one(&self, path: &str, object: &Value) -> Result<()> {
        create(&mut self.access.open()?, path, object)
    }

    /// Returns an object.
    ///
    /// # Errors
    /// When it does not exist.
    pub(super) fn get(&self, path: &str) -> Result<Value> {
        let (status, body) = self.access.open()?.request("GET", path, "application/json", &Value::Null)?;
        ensure!(status == 200, "{path}: {status} {}", String::from_utf8_lossy(&body));
        serde_json::from_slice(&body).with_context(|| path.to_owned())
    }

    /// Creates the objects that do not exist yet.
    ///
    /// # Errors
    /// When the API refuses an object, or contains objects of another size.
    pub(super) fn fill(&self, size: Size) -> Result<()> {
        let mark = self.state.join("filled");
        let mark_text = format!("{size:?}");
        match fs::read_to_string(&mark) {
            Ok(there) if there == mark_text => return Ok(()),
            Ok(there) => bail!("{} holds {there}, not {mark_text}", self.state.display()),
            Err(_) => {}
        }
        let kinds: [(&str, u32, &Objects<'_>); 3] = [
            ("namespaces", NAMESPACES, &|number| vec![namespace_object(number)]),
            ("services", size.services + 1, &|number| vec![service(number, size)]),
            ("endpoint slices", size.services + 1, &|number| slices(number, size)),
        ];
        for (kind, count, objects) in kinds {
            let clock = Clock::start();
            self.create(count, objects)?;
            eprintln!("{kind} of {count}: {:.0} s", clock.now_ns() as f64 / 1e9);
        }
        fs::write(&mark, mark_text).with_context(|| mark.display().to_string())
    }

    fn create(&self, count: u32, objects: &Objects<'_>) -> Result<()> {
        let next = AtomicU32::new(0);
        thread::scope(|scope| {
            let worker = || -> Result<()> {
                let mut connection = self.access.open()?;
                loop {
                    let number = next.fetch_add(1, Relaxed);
                    if number >= count {
                        return Ok(());
                    }
                    for (path, object) in objects(number) {
                        create(&mut connection, &path, &object)?;
                    }
                }
            };
            // All workers start before the first is waited for.
            let mut workers = [(); AT_ONCE].map(|()| scope.spawn(worker)).into_iter();
            workers.try_for_each(|worker| worker.join().expect("no client panics"))
        })
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        drop(script("down", &self.state));
    }
}

fn create(connection: &mut Connection, path: &str, object: &Value) -> Result<()> {
    let (status, body) = connection.request("POST", path, "application/json", object)?;
    // For an existing service the API replies 422: the address is allocated already.
    let is_there = status == 422 && {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        connection.request("GET", &format!("{path}/{name}"), "application/json", &Value::Null)?.0 == 200
    };
    let done = matches!(status, 200 | 201 | 409) || is_there;
    ensure!(done, "{path}: {status} {}", String::from_utf8_lossy(&body));
    Ok(())
}

/// A measurement changes the service with the highest number: it is headless, and has one slice
/// with one endpoint.
impl Size {
    pub(super) fn changed(self) -> String {
        format!("{}.{}.svc.cluster.local", name(self.services), namespace(self.services))
    }

    /// Returns the path of the changed service's slice.
    pub(super) fn changed_slice(self) -> String {
        format!("{}/{}-0", slices_of(self.services), name(self.services))
    }

    /// Returns the number of a service's slices.
    pub(super) fn slices(self, number: u32) -> usize {
        slices(number, self).len()
    }

    /// Returns the name and the first address of a service, for questions.
    pub(super) fn known(self, number: u32) -> (String, Ipv4Addr) {
        let each = self.endpoints / self.services;
        let address = if is_headless(number) { endpoint_address(number * each) } else { cluster_ip(number) };
        (format!("{}.{}.svc.cluster.local", name(number), namespace(number)), address)
    }
}

fn name(number: u32) -> String {
    format!("svc-{number}")
}

fn namespace(number: u32) -> String {
    format!("ns-{}", number % NAMESPACES)
}

fn slices_of(number: u32) -> String {
    format!("/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices", namespace(number))
}

pub(super) fn is_headless(number: u32) -> bool {
    number.is_multiple_of(10)
}

fn cluster_ip(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 96, 1, 0).to_bits() + number)
}

fn endpoint_address(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 128, 0, 0).to_bits() + number)
}

fn namespace_object(number: u32) -> (String, Value) {
    ("/api/v1/namespaces".to_owned(), json!({"metadata": {"name": namespace(number)}}))
}

fn service(number: u32, size: Size) -> (String, Value) {
    let headless = is_headless(number) || number == size.services;
    let address = if headless { "None".to_owned() } else { cluster_ip(number).to_string() };
    let spec = json!({"clusterIP": address, "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]});
    let path = format!("/api/v1/namespaces/{}/services", namespace(number));
    (path, json!({"metadata": {"name": name(number)}, "spec": spec}))
}

fn slices(number: u32, size: Size) -> Vec<(String, Value)> {
    let each = size.endpoints / size.services;
    let all: Vec<u32> = match number == size.services {
        true => vec![size.endpoints],
        false => (number * each..(number + 1) * each).collect(),
    };
    let slice = |(index, part): (usize, &[u32])| {
        let endpoints: Vec<Value> = part.iter().map(|endpoint| self::endpoint(number, *endpoint)).collect();
        (slices_of(number), slice(number, index, &endpoints))
    };
    all.chunks(IN_A_SLICE).enumerate().map(slice).collect()
}

fn slice(number: u32, index: usize, endpoints: &[Value]) -> Value {
    json!({
        "metadata": {"name": format!("{}-{index}", name(number)), "labels": {"kubernetes.io/service-name": name(number)}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": endpoints,
    })
}

/// Returns an endpoint as the controller of endpoint slices writes it.
fn endpoint(of: u32, number: u32) -> Value {
    json!({
        "addresses": [endpoint_address(number).to_string()],
        "hostname": format!("ep-{number}"),
        "conditions": {"ready": true, "serving": true, "terminating": false},
        "nodeName": format!("node-{}", number % 1_000),
        "zone": format!("zone-{}", number % 3),
        "targetRef": {
            "kind": "Pod",
            "namespace": namespace(of),
            "name": format!("svc-{of}-{number:08x}-{:05}", number % 100_000),
            "uid": format!("00000000-0000-0000-0000-{number:012x}"),
        },
    })
}

/// Returns every object of each kind with its version, as an API returns them: kind, path, objects.
pub(super) fn objects(size: Size) -> [(&'static str, &'static str, Vec<Value>); 3] {
    let all = |count: u32, of: &dyn Fn(u32) -> Vec<(String, Value)>| {
        (0..count)
            .flat_map(|number| of(number).into_iter().map(move |(_, object)| with_version(object, number, 1)))
            .collect()
    };
    [
        ("Namespace", "/api/v1/namespaces", all(NAMESPACES, &|number| vec![namespace_object(number)])),
        ("Service", "/api/v1/services", all(size.services + 1, &|number| vec![service(number, size)])),
        (
            "EndpointSlice",
            "/apis/discovery.k8s.io/v1/endpointslices",
            all(size.services + 1, &|number| slices(number, size)),
        ),
    ]
}

/// Returns the first slice of a service, with one endpoint at this address.
pub(super) fn slice_with(number: u32, address: Ipv4Addr, version: u64) -> Value {
    let mut endpoint = endpoint(number, number);
    endpoint["addresses"] = json!([address.to_string()]);
    with_version(slice(number, 0, &[endpoint]), number, version)
}

fn with_version(mut object: Value, number: u32, version: u64) -> Value {
    object["metadata"]["namespace"] = namespace(number).into();
    object["metadata"]["resourceVersion"] = version.to_string().into();
    object
}

fn script(name: &str, state: &Path) -> Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/kube").join(name);
    let mut command = Command::new(&path);
    if name == "down" {
        command.arg("--keep");
    }
    let output = command.env("KUBE_STATE_DIR", state).output();
    let output = output.with_context(|| path.display().to_string())?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name}: {errors}; tests/kube/build makes its programs");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

const NAMESPACES: u32 = 10;
/// Maximum number of endpoints that the controller puts into a slice.
const IN_A_SLICE: usize = 100;
const AT_ONCE: usize = 8;
const LOOK: Duration = Duration::from_millis(10);
const END_MAX: Duration = Duration::from_secs(10);
