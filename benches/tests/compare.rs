//! The comparison as a whole: one command, and its report.

use std::fs;
use std::process::Command;

use serde_json::Value;

#[test]
fn one_command_measures_and_writes_the_table() {
    // Only root may create a network namespace.
    let root = fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    if !root {
        testkit::skip("one_command_measures_and_writes_the_table", "this is not root");
        return;
    }
    let dir = std::env::temp_dir().join(format!("localdns-compare-{}", std::process::id()));
    fs::create_dir_all(&dir).expect("a directory");
    let out = dir.display().to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_benches"))
        .args(["compare", "--servers", "echo,relay", "--works", "whoami,miss,workers,workers-hot"])
        .args([
            "--rounds",
            "1",
            "--seconds",
            "1",
            "--repeats",
            "0",
            "--flood-only",
            "--name",
            "x",
            "--out",
            &out,
        ])
        .env_remove("CARGO")
        .args(["--localdns", "/nowhere"])
        .output()
        .expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read = |name: &str| fs::read_to_string(dir.join(name)).expect("it is written");
    let (table, all) = (read("x.md"), read("x.json"));
    fs::remove_dir_all(&dir).expect("it was there");
    let all: Value = serde_json::from_str(&all).expect("JSON");
    assert_eq!(all["failures"], Value::Array(vec![]), "{table}");
    let samples = all["samples"].as_array().expect("samples");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let seen: Vec<_> =
        samples.iter().map(|sample| text(&sample["work"]) + " " + &text(&sample["server"])).collect();
    let expected = ["whoami echo", "miss echo", "miss relay", "workers echo", "workers-hot echo"];
    assert_eq!(seen, expected);
    for sample in samples {
        // Ten slices of 0.1 s, each after a warm-up that is not counted.
        assert_eq!(sample["seconds"], 1.0);
        assert!(sample["rate"].as_f64() > Some(100.0), "{sample}");
        assert_eq!(sample["strays"], 0, "{sample}");
        assert!(sample["server_cpu_seconds"].as_f64() > Some(0.0), "{sample}");
    }
    assert!(table.contains("| whoami | echo |"), "{table}");
    assert!(table.contains("\n## One hot name\n"), "{table}");
}
