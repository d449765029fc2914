//! The two recipes of the image: `deploy/build-image`, which needs neither a builder nor a network,
//! and `deploy/Containerfile`.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tests::{run, tempdir};

#[test]
fn both_image_recipes_agree() {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy");
    let containerfile = fs::read_to_string(deploy.join("Containerfile")).expect("it is there");
    let (config, mut files) = built(&deploy);
    let instructions = |word: &str| -> Vec<&str> {
        let start = format!("{word} ");
        containerfile.lines().filter_map(|line| line.strip_prefix(&start)).collect()
    };
    let list = |word: &str| -> Value {
        let [list] = instructions(word)[..] else { panic!("one line of {word}") };
        serde_json::from_str(list).expect("a list")
    };
    assert_eq!(instructions("FROM"), ["scratch"]);
    let ports: serde_json::Map<_, _> =
        instructions("EXPOSE").concat().split(' ').map(|port| (port.to_owned(), json!({}))).collect();
    let mut expected = json!({
        "Entrypoint": list("ENTRYPOINT"),
        "Cmd": list("CMD"),
        "ExposedPorts": ports,
        "WorkingDir": instructions("WORKDIR").last(),
    });
    // root, unless a recipe sets another user.
    if let [user] = instructions("USER")[..] {
        expected["User"] = user.into();
    }
    if let [_, ..] = instructions("ENV")[..] {
        expected["Env"] = instructions("ENV").into();
    }
    assert_eq!(config["config"], expected);
    // Each directory is created with its parents.
    let mut wanted: Vec<_> = instructions("COPY")
        .iter()
        .filter_map(|line| line.split(' ').next_back())
        .map(PathBuf::from)
        .collect();
    for directory in instructions("WORKDIR") {
        wanted.extend(Path::new(directory).ancestors().map(Path::to_owned));
    }
    for list in [&mut wanted, &mut files] {
        list.sort();
        list.dedup();
    }
    assert_eq!(files, wanted);
}

/// Builds an image of an empty program; returns its configuration and the paths in its layer.
fn built(deploy: &Path) -> (Value, Vec<PathBuf>) {
    let place = tempdir();
    let path = |name: &str| place.path().join(name).to_str().expect("its path is text").to_owned();
    fs::write(path("program"), "").expect("the directory is ours");
    fs::create_dir(path("image")).expect("the directory is ours");
    let script = deploy.join("build-image");
    run(script.to_str().expect("its path is text"), &[&path("program"), "x86_64", &path("image.tar")]);
    run("tar", &["-xf", &path("image.tar"), "-C", &path("image")]);
    let blob = |pointer: &Value| {
        let digest = pointer["digest"].as_str().expect("it has a digest").trim_start_matches("sha256:");
        path(&format!("image/blobs/sha256/{digest}"))
    };
    let read = |path: &str| -> Value {
        serde_json::from_str(&fs::read_to_string(path).expect("it is there")).expect("it is JSON")
    };
    let manifest = read(&blob(&read(&path("image/index.json"))["manifests"][0]));
    let files = run("tar", &["-tzf", &blob(&manifest["layers"][0])]);
    let files = files.lines().map(|file| Path::new("/").join(file.trim_start_matches("./")));
    (read(&blob(&manifest["config"])), files.collect())
}
