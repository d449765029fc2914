//! The output of `deploy/build-packages` on a node: packages installed, upgraded, removed and
//! purged under the test's own systemd; the image's one layer run. `LOCALDNS_PACKAGES` names their
//! directory.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tests::{Ask, Systemd, assert_contains, eventually, isolated, output, run, skip, tempdir, tool};

use super::{Killed, text};

/// Files in both packages, besides documents.
const HELD: &[&str] = &[
    "/etc/localdns/Corefile",
    "/usr/bin/localdns",
    "/usr/lib/systemd/system/localdns-node-resolver.service",
    "/usr/lib/systemd/system/localdns-node-annotate.service",
    "/usr/lib/systemd/system/localdns-node-up.service",
    "/usr/lib/systemd/system/localdns-node.service",
    "/usr/lib/systemd/system/localdns-refresh.service",
    "/usr/lib/systemd/system/localdns-refresh.timer",
    "/usr/lib/systemd/system/localdns.service",
    "/usr/share/bash-completion/completions/localdns",
    "/usr/share/doc/localdns/README.md",
    "/usr/share/doc/localdns/LICENSE",
    "/usr/share/doc/localdns/NOTICES",
    "/usr/share/doc/localdns/localdns.cdx.json",
    "/usr/share/doc/localdns/docs/node.md",
    "/usr/share/doc/localdns/plugins/src/forward/README.md",
    "/usr/share/doc/localdns/deploy/monitoring/alerts.yaml",
    "/usr/share/fish/vendor_completions.d/localdns.fish",
    "/usr/share/man/man8/localdns.8.gz",
    "/usr/share/man/man8/localdns-check.8.gz",
    "/usr/share/man/man8/localdns-explain.8.gz",
    "/usr/share/man/man8/localdns-node-annotate.8.gz",
    "/usr/share/man/man8/localdns-node-cache.8.gz",
    "/usr/share/man/man8/localdns-node-down.8.gz",
    "/usr/share/man/man8/localdns-node-resolver.8.gz",
    "/usr/share/man/man8/localdns-node-run.8.gz",
    "/usr/share/man/man8/localdns-node-status.8.gz",
    "/usr/share/man/man8/localdns-node-stopped.8.gz",
    "/usr/share/man/man8/localdns-node-up.8.gz",
    "/usr/share/man/man8/localdns-refresh.8.gz",
    "/usr/share/man/man8/localdns-status.8.gz",
];

/// The program, its units, its pages, and a Corefile that is kept.
#[test]
fn package_contents() {
    let test = "package_contents";
    let Some(packages) = packages(test) else { return };
    if !tool(test, "rpm") {
        return;
    }
    // ELF's machine number.
    for (arch, of_deb, machine) in [("x86_64", "amd64", 0x3e), ("aarch64", "arm64", 0xb7)] {
        if arch != "x86_64" && ends_so(&packages, &format!(".{arch}.rpm")).is_empty() {
            skip(test, &format!("deploy/build-packages made none for {arch}"));
            continue;
        }
        let deb = word(&path_of(&packages, &format!("_{of_deb}.deb")));
        let rpm = word(&path_of(&packages, &format!(".{arch}.rpm")));
        let files = run("sh", &["-ec", &format!("dpkg-deb --fsys-tarfile {deb} | tar --list")]);
        let both = [("deb", files.replace("./", "/")), ("rpm", run("rpm", &["-qpl", &rpm]))];
        for (kind, files) in both {
            for held in HELD {
                assert!(files.lines().any(|file| file == *held), "{kind} {arch}: {held} is not in\n{files}");
            }
            // Distributions differ in the directory of zsh completions.
            assert!(files.lines().any(|file| file.ends_with("/_localdns")), "{kind} {arch}: {files}");
        }
        let kept = run("dpkg-deb", &["-I", &deb, "conffiles"]);
        assert_eq!(kept, "/etc/localdns/Corefile\n");
        assert_eq!(run("rpm", &["-qpc", &rpm]), "/etc/localdns/Corefile\n");
        let kind = run("rpm", &["-qp", "--qf", "%{LICENSE} %{ARCH}", &rpm]);
        assert_eq!(kind, format!("Apache-2.0 {arch}"));
        assert_eq!(run("dpkg-deb", &["-f", &deb, "Architecture"]), format!("{of_deb}\n"));
        let place = tempdir();
        run("dpkg-deb", &["-x", &deb, &word(place.path())]);
        let program = place.path().join("usr/bin/localdns");
        assert_eq!(fs::read(&program).expect("it is there")[18], machine, "{arch}");
        supply_chain_is_described(&place.path().join("usr/share/doc/localdns"));
        let sum = run("sha256sum", &[&word(&program)]);
        let sum = sum.split(' ').next().expect("it has a sum");
        let held = run("rpm", &["-qp", "--qf", "[%{FILENAMES} %{FILEDIGESTS}\n]", &rpm]);
        assert_contains!(held, format!("/usr/bin/localdns {sum}\n"));
    }
}

/// The notices have the texts of crates' licences; the bill of materials names each crate once, with
/// the hash of its archive and without paths of the machine that built it.
fn supply_chain_is_described(documents: &Path) {
    let read = |name: &str| fs::read_to_string(documents.join(name)).expect("it is there");
    let (notices, bill) = (read("NOTICES"), read("localdns.cdx.json"));
    assert_contains!(notices, "Copyright (c) 2016 Joseph Birr-Pixton");
    let bill: Value = serde_json::from_str(&bill).expect("it is JSON");
    assert_eq!((&bill["bomFormat"], &bill["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
    let components = bill["components"].as_array().expect("it has components");
    let has = |name: &str| components.iter().any(|one| one["name"] == name);
    assert!(
        has("tokio") && has("arc-swap") && has("clap") && has("prometheus") && !has("tempfile"),
        "{bill}"
    );
    for one in components {
        let hash = one["hashes"][0]["content"].as_str().unwrap_or_default();
        assert_eq!(hash.len(), 64, "{one}");
        let (name, version) = (one["name"].as_str().unwrap_or("?"), one["version"].as_str().unwrap_or("?"));
        assert_contains!(notices, format!("\n{name} {version}, "));
    }
    assert!(!bill.to_string().contains(env!("CARGO_MANIFEST_DIR").trim_end_matches("/tests")), "{bill}");
}

/// Removal disables every unit that can be enabled.
#[test]
fn removal_disables_every_unit() {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy");
    let files = fs::read_dir(&deploy).expect("it is there").flatten().map(|file| file.path());
    let is_enabled = |file: &PathBuf| {
        let is_unit = file.extension().is_some_and(|kind| kind == "service" || kind == "timer");
        is_unit && fs::read_to_string(file).expect("a unit").contains("[Install]")
    };
    let units: Vec<_> = files.filter(is_enabled).collect();
    assert!(units.len() >= 4, "{units:?}");
    for script in ["packages/debian/prerm", "packages/rpm/preun"] {
        let text = fs::read_to_string(deploy.join(script)).expect("it is there");
        for unit in &units {
            let name = unit.file_name().expect("a file").to_string_lossy();
            assert!(text.split_whitespace().any(|word| word == name), "{script} leaves {name} enabled");
        }
    }
}

/// The .deb is installed, upgraded, removed and purged.
#[test]
fn deb_life_cycle() {
    isolated(|| {
        let test = "deb_life_cycle";
        let Some(packages) = packages(test) else { return };
        let Some(systemd) = boot(test) else { return };
        let dpkg = |args: &[&str]| drop(inside(&systemd, "dpkg", args));
        // This systemd has its own /tmp, and may not see the directory of the packages.
        let deb = PathBuf::from(PLACE).join("localdns.deb");
        fs::copy(path_of(&packages, "_amd64.deb"), &deb).expect("there is room");
        dpkg(&["-i", &word(&deb)]);
        newer_program_replaces_the_running(&systemd, |version| {
            let newer = newer(&deb, version);
            dpkg(&["--force-confdef", "-i", &word(&newer.1)]);
        });
        dpkg(&["-r", "localdns"]);
        nothing_is_left(&systemd);
        assert_eq!(fs::read_to_string("/etc/localdns/Corefile").expect("it is there"), COREFILE);
        dpkg(&["-P", "localdns"]);
        assert!(!Path::new("/etc/localdns").exists());
    });
}

/// Boots a systemd without localdns in which packages can be installed; `None` where that is not
/// possible.
pub(super) fn boot(test: &str) -> Option<Systemd> {
    let systemd = Systemd::boot(test)?;
    // The host's programs and package database stay unchanged.
    let mut mounts = systemd.inside("sh");
    mounts.args(["-ec", OVERLAYS]);
    let mounted = output(mounts, PATIENCE);
    if !mounted.status.success() {
        skip(test, &format!("file systems of its own: {}", text(&mounted.stderr).trim()));
        return None;
    }
    fs::create_dir(PLACE).expect("the test has an /etc of its own");
    fs::remove_dir_all("/etc/localdns").expect("the test has an /etc of its own");
    Some(systemd)
}

/// Runs a program to its end; returns its output.
pub(super) fn inside(systemd: &Systemd, program: &str, args: &[&str]) -> String {
    let mut command = systemd.inside(program);
    command.args(args);
    let done = output(command, PATIENCE);
    let printed = text(&done.stdout) + &text(&done.stderr);
    assert!(done.status.success(), "{program} {args:?}: {printed}");
    printed
}

/// After an installation nothing runs; each server's unit starts, and after an upgrade a new
/// process of it answers from the operator's Corefile.
pub(super) fn newer_program_replaces_the_running(systemd: &Systemd, upgrade: impl Fn(&str)) {
    fs::write("/etc/localdns/Corefile", COREFILE).expect("it is there");
    for (unit, other, version) in
        [("localdns", "localdns-node", "9.9.8"), ("localdns-node", "localdns", "9.9.9")]
    {
        assert_eq!(systemd.show(unit, "ActiveState,LoadState"), ["inactive", "loaded"]);
        let wanted = format!("/etc/systemd/system/multi-user.target.wants/{unit}.service");
        assert!(!Path::new(&wanted).exists());
        systemd.ctl(&["start", unit]);
        answers();
        let first = systemd.main_pid(unit);
        upgrade(version);
        assert_eq!(fs::read_to_string("/etc/localdns/Corefile").expect("it is there"), COREFILE);
        let next = systemd.main_pid(unit);
        assert!(next != first && next != "0", "{unit}: {first} is followed by {next}");
        answers();
        assert_eq!(systemd.show(other, "ActiveState"), ["inactive"], "what did not run does not");
    }
}

/// Asserts that no server, address or rule is left.
pub(super) fn nothing_is_left(systemd: &Systemd) {
    for unit in ["localdns", "localdns-node"] {
        assert_eq!(systemd.show(unit, "ActiveState"), ["inactive"], "{unit}");
    }
    let links = run("ip", &["address", "show"]);
    assert!(!links.contains("169.254.10.10"), "no server would answer there:\n{links}");
    if tool("packages", "nft") {
        assert_eq!(run("nft", &["list", "tables", "inet"]), "");
    }
}

fn answers() {
    let at: SocketAddr = "169.254.10.10:53".parse().expect("it is an address");
    assert_eq!(Ask::new("a.example", "A").of(at).short(), ["192.0.2.1"]);
}

/// The image has one layer with one program, which serves.
#[test]
fn image_has_one_layer_and_program() {
    isolated(|| {
        let test = "image_has_one_layer_and_program";
        let Some(packages) = packages(test) else { return };
        let place = tempdir();
        let (image, root) = (place.path().join("image"), place.path().join("root"));
        for path in [&image, &root] {
            fs::create_dir(path).expect("the directory is ours");
        }
        let text = |path: &Path| path.to_str().expect("its path is text").to_owned();
        run("tar", &["-xf", &text(&path_of(&packages, "-x86_64.tar")), "-C", &text(&image)]);
        let blob = |pointer: &Value| {
            let digest = pointer["digest"].as_str().expect("it has a digest").trim_start_matches("sha256:");
            let path = image.join("blobs/sha256").join(digest);
            let sum = run("sha256sum", &[&text(&path)]);
            assert!(sum.starts_with(digest), "{sum}");
            assert_eq!(fs::metadata(&path).expect("it is there").len(), pointer["size"], "{digest}");
            path
        };
        let read = |path: &Path| -> Value {
            serde_json::from_str(&fs::read_to_string(path).expect("it is there")).expect("it is JSON")
        };
        let manifest = read(&blob(&read(&image.join("index.json"))["manifests"][0]));
        let config = read(&blob(&manifest["config"]));
        assert_eq!(config["config"]["Entrypoint"], serde_json::json!(["/localdns"]));
        assert_eq!(manifest["layers"].as_array().map(Vec::len), Some(1));
        run("tar", &["-xzf", &text(&blob(&manifest["layers"][0])), "-C", &text(&root)]);
        supply_chain_is_described(&root.join("usr/share/doc/localdns"));
        // For the pidfile of NodeLocal DNSCache's manifest.
        let mode = fs::metadata(root.join("tmp")).expect("it has a /tmp").permissions().mode();
        assert_eq!(mode & 0o7777, 0o1777);

        fs::create_dir_all(root.join("etc/coredns")).expect("the directory is ours");
        let corefile = ".:53 {\nbind 127.0.0.1\nhosts {\n192.0.2.1 a.example\n}\n}\n";
        fs::write(root.join("etc/coredns/Corefile"), corefile).expect("the directory is ours");
        let mut server = Command::new("chroot");
        server.arg(&root).args(["/localdns", "-conf", "/etc/coredns/Corefile"]).stdout(Stdio::null());
        let _server = Killed(server.spawn().expect("chroot is there"));
        let at: SocketAddr = "127.0.0.1:53".parse().expect("it is an address");
        eventually("an answer", PATIENCE, || {
            let reply = Ask::new("a.example", "A").timeout(Duration::from_millis(200)).try_of(at).ok()?;
            (reply.short() == ["192.0.2.1"]).then_some(())
        });
    });
}

/// `LOCALDNS_ARM64` names the binary; it runs under qemu on other processors.
#[test]
fn arm64_binary_answers() {
    isolated(|| {
        let test = "arm64_binary_answers";
        let Some(binary) = std::env::var_os("LOCALDNS_ARM64") else {
            return skip(test, "LOCALDNS_ARM64 does not say where `deploy/build-static aarch64` put it");
        };
        if !tool(test, "qemu-aarch64") {
            return;
        }
        let place = tempdir();
        let corefile = place.path().join("Corefile");
        let text = ".:53 {\nbind 127.0.0.1\nhosts {\n192.0.2.1 a.example\n}\n}\n";
        fs::write(&corefile, text).expect("the directory is ours");
        let mut server = Command::new("qemu-aarch64");
        server.arg(binary).arg("-conf").arg(&corefile).stdout(Stdio::null());
        let _server = Killed(server.spawn().expect("qemu is there"));
        let at: SocketAddr = "127.0.0.1:53".parse().expect("it is an address");
        eventually("an answer", PATIENCE, || {
            let reply = Ask::new("a.example", "A").timeout(Duration::from_millis(500)).try_of(at).ok()?;
            (reply.short() == ["192.0.2.1"]).then_some(())
        });
        assert_eq!(Ask::new("a.example", "A").tcp().of(at).short(), ["192.0.2.1"]);
    });
}

/// The directory of the packages, if any.
pub(super) fn packages(test: &str) -> Option<PathBuf> {
    let packages = std::env::var_os("LOCALDNS_PACKAGES").map(PathBuf::from);
    if packages.is_none() {
        skip(test, "LOCALDNS_PACKAGES does not say where deploy/build-packages put them");
    }
    packages
}

/// The one file there with this suffix.
pub(super) fn path_of(packages: &Path, end: &str) -> PathBuf {
    let found = ends_so(packages, end);
    assert_eq!(found.len(), 1, "{end}: {found:?}");
    found.into_iter().next().expect("there is one")
}

fn ends_so(packages: &Path, end: &str) -> Vec<PathBuf> {
    let packages =
        fs::canonicalize(packages).unwrap_or_else(|error| panic!("{}: {error}", packages.display()));
    let entries = fs::read_dir(&packages).unwrap_or_else(|error| panic!("{}: {error}", packages.display()));
    let paths = entries.map(|entry| entry.expect("a directory can be read").path());
    paths.filter(|path| path.to_string_lossy().ends_with(end)).collect()
}

pub(super) fn word(path: &Path) -> String {
    path.to_str().expect("its path is text").to_owned()
}

/// The same package with a later version; deleted with the directory.
fn newer(deb: &Path, version: &str) -> (tempfile::TempDir, PathBuf) {
    let place = tempfile::tempdir_in(deb.parent().expect("it lies in a directory")).expect("it is ours");
    let (tree, newer) = (place.path().join("tree"), place.path().join("newer.deb"));
    let mut make = Command::new("sh");
    make.args(["-ec", NEWER]).env("DEB", deb).env("TREE", &tree).env("NEWER", &newer).env("VERSION", version);
    let made = output(make, PATIENCE);
    assert!(made.status.success(), "{}", text(&made.stderr));
    (place, newer)
}

const NEWER: &str = r#"
dpkg-deb -R "$DEB" "$TREE"
sed -i "s/^Version: .*/Version: $VERSION-1/" "$TREE/DEBIAN/control"
printf '# of %s\n' "$VERSION" >>"$TREE/etc/localdns/Corefile"
dpkg-deb -b "$TREE" "$NEWER"
"#;
/// Keeps the packages' writes in memory, and their units where this systemd looks for them.
const OVERLAYS: &str = r#"
for place in /usr/bin /usr/share /var/lib/dpkg; do
    upper=/run/overlay$place
    mkdir -p $upper/up $upper/work
    mount -t overlay overlay -o lowerdir=$place,upperdir=$upper/up,workdir=$upper/work $place
done
rm -f /etc/systemd/system/localdns*
mount --bind /etc/systemd/system /usr/lib/systemd/system
umount /usr/local/bin/localdns
rm /usr/local/bin/localdns
systemctl daemon-reload
"#;
/// A directory that this systemd sees too.
pub(super) const PLACE: &str = "/etc/packages";
pub(super) const COREFILE: &str = ".:53 {\nbind 169.254.10.10\nhosts {\n192.0.2.1 a.example\n}\n}\n";
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
