//! The status page's script, run on a server's status: no value there stops it.

use std::fs;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tests::{Options, Server, ask, eventually, http_get, isolated, output, tool};

use super::lab::{Lab, NAME};

#[test]
fn page_script_shows_a_server() {
    isolated(|| {
        if !tool("status script", "nft") || !tool("status script", "node") {
            return;
        }
        let _lab = Lab::new();
        let options = Options::default().subcommand(&["node", "run"]).args(["-host-resolver", "none"]);
        let server = Server::start_with(COREFILE, options);
        server.wait_for_log("queries to 169.254.10.10 are answered here", PATIENCE);
        ask("169.254.10.10:53".parse().expect("an address"), NAME, "A");
        let admin = "127.0.0.1:9253".parse().expect("an address");
        let status = eventually("a probed address", PATIENCE, || {
            let (_, status) = http_get(admin, "/status").ok()?;
            let status_text: Value = serde_json::from_str(&status).expect("one object");
            (status_text["node"]["addresses"][0]["held"] == true).then_some(status)
        });
        fs::write("/run/status.json", &status).expect("the test's own");
        fs::write("/run/page.html", http_get(admin, "/status.html").expect("a page").1)
            .expect("the test's own");
        fs::write("/run/page.js", PAGE).expect("the test's own");
        let mut page = Command::new("node");
        page.args(["/run/page.js", "/run/page.html", "/run/status.json"]);
        let shown = output(page, PATIENCE);
        let text = String::from_utf8_lossy(&shown.stdout);
        assert!(shown.status.success(), "{text}{}", String::from_utf8_lossy(&shown.stderr));
        let error = text.lines().find_map(|line| line.strip_prefix("error: "));
        assert_eq!(error, Some(""), "{status}\n{text}");
        for part in [
            "title: localdns on n1",
            &format!("process {}, ", server.pid()),
            "Answers",
            "queries",
            "Cache",
            "Upstreams",
            "10.2.0.2:53",
            "Rules and leases",
            "169.254.10.10 held 0 answered ",
            "Hosts",
            "Zones",
        ] {
            assert!(text.contains(part), "{part:?} is not shown:\n{text}");
        }
    });
}

const PATIENCE: Duration = Duration::from_secs(15);
const COREFILE: &str = "
.:53 {
    bind 169.254.10.10
    cache
    forward . 10.2.0.2
    prometheus :9253
}
";
/// The parts of the DOM that the script uses.
const PAGE: &str = r#"
const [page, said] = process.argv.slice(2).map(file => require("fs").readFileSync(file, "utf8"));
class Node {
  inside = []; of = {}; style = {};
  setAttribute(name, value) { this.of[name] = value }
  append(...more) { this.inside.push(...more) }
  replaceChildren(...more) { this.inside = more }
  get firstChild() { return this.inside[0] }
  get textContent() { return this.inside.map(one => one instanceof Node ? one.textContent : one).join(" ") }
  set textContent(text) { this.inside = [text] }
}
const byId = {summary: new Node, error: new Node, main: new Node};
const document = {createElement: () => new Node, getElementById: id => byId[id], activeElement: {id: "", scrollLeft: 0}};
require("vm").runInNewContext(page.match(/<script>([^]*)<\/script>/)[1], {
  document, Node, AbortSignal, location: {hostname: "n1"}, setTimeout() {},
  fetch: async path => ({ok: path === "status", status: 404, json: async () => JSON.parse(said)}),
});
setImmediate(() => {
  console.log("title: " + document.title);
  for (const id in byId) console.log(id + ": " + byId[id].textContent);
});
"#;
