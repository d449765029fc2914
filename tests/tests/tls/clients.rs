//! Clients that are not part of this project.

use std::process::Command;
use std::time::Duration;

use tests::{assert_contains, output, tool};

use super::{Dot, HOST};

#[test]
fn kdig_is_answered_over_tls() {
    if !tool("kdig_is_answered_over_tls", "kdig") {
        return;
    }
    let dot = Dot::start("", "", "hosts {\n192.0.2.7 www.example\n}");
    let mut kdig = Command::new("kdig");
    kdig.arg(format!("@{}", dot.at.ip())).args(["-p", &dot.at.port().to_string()]);
    kdig.arg(format!("+tls-ca={}", dot.files.path().join("ca.pem").display()));
    // Two queries on one connection.
    kdig.args([&format!("+tls-hostname={HOST}"), "+keepopen", "www.example", "A", "WWW.example", "A"]);
    let client = output(kdig, Duration::from_secs(10));
    let text = String::from_utf8_lossy(&client.stdout);
    assert!(client.status.success(), "{client:?}");
    assert_eq!(text.matches("192.0.2.7").count(), 2, "{text}");
    assert_contains!(text, "TLS session");
}

/// Go's TLS client is answered and resumes its session over both versions of TLS.
#[test]
fn go_client_resumes_its_session() {
    let test = "go_client_resumes_its_session";
    if !tool(test, "go") {
        return;
    }
    let dot = Dot::start("", "", "hosts {\n192.0.2.7 www.example\n}");
    std::fs::write(dot.files.path().join("main.go"), CLIENT).unwrap();
    let mut go = Command::new("go");
    go.current_dir(dot.files.path()).args(["run", "main.go", &dot.at.to_string(), HOST, "ca.pem"]);
    let client = output(go, Duration::from_secs(120));
    let text = String::from_utf8_lossy(&client.stdout).into_owned();
    assert!(client.status.success(), "{client:?}");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines,
        [
            "303 resumed=false alpn=dot ids=1,2,3",
            "303 resumed=true alpn=dot ids=1,2,3",
            "304 resumed=false alpn=dot ids=1,2,3",
            "304 resumed=true alpn=dot ids=1,2,3",
        ]
    );
}

/// Go's standard library: three pipelined queries on each connection.
const CLIENT: &str = r#"package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"
	"time"
)

func main() {
	pem, err := os.ReadFile(os.Args[3])
	check(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		config := &tls.Config{RootCAs: roots, ServerName: os.Args[2], NextProtos: []string{"dot"},
			MinVersion: version, MaxVersion: version, ClientSessionCache: tls.NewLRUClientSessionCache(4)}
		for range 2 {
			connection, err := tls.Dial("tcp", os.Args[1], config)
			check(err)
			connection.SetDeadline(time.Now().Add(5 * time.Second))
			for id := uint16(1); id <= 3; id++ {
				query := []byte{0, 29, 0, byte(id), 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}
				query = append(query, "\x03www\x07example\x00\x00\x01\x00\x01"...)
				_, err = connection.Write(query)
				check(err)
			}
			ids := []string{}
			for range 3 {
				var length uint16
				check(binary.Read(connection, binary.BigEndian, &length))
				reply := make([]byte, length)
				_, err = io.ReadFull(connection, reply)
				check(err)
				if reply[3]&15 != 0 || reply[7] != 1 {
					panic(fmt.Sprint(reply))
				}
				ids = append(ids, fmt.Sprint(binary.BigEndian.Uint16(reply)))
			}
			sort.Strings(ids)
			state := connection.ConnectionState()
			fmt.Printf("%x resumed=%v alpn=%s ids=%s\n", state.Version, state.DidResume, state.NegotiatedProtocol,
				strings.Join(ids, ","))
			connection.Close()
		}
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
"#;
