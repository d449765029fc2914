//! Encodes objects as the API does, from JSON: as JSON, or as protobuf with the field numbers of
//! k8s.io/api's generated.proto.

use serde_json::Value;

/// A content type of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `application/json`
    Json,
    /// `application/vnd.kubernetes.protobuf`
    Protobuf,
}

impl Form {
    /// The value of `Content-Type`.
    pub fn content_type(self, watch: bool) -> &'static str {
        match (self, watch) {
            (Self::Json, _) => "application/json",
            (Self::Protobuf, false) => "application/vnd.kubernetes.protobuf",
            (Self::Protobuf, true) => "application/vnd.kubernetes.protobuf;stream=watch",
        }
    }

    /// One page of a list of `kind`, such as `Service`.
    pub fn list(self, kind: &str, version: &str, next: &str, items: &[Value]) -> Vec<u8> {
        let metadata = serde_json::json!({"resourceVersion": version, "continue": next});
        match self {
            Self::Json => {
                let (version, kind) = (group_version(kind), format!("{kind}List"));
                serde_json::json!({"apiVersion": version, "kind": kind, "metadata": metadata, "items": items})
                    .to_string()
                    .into_bytes()
            }
            Self::Protobuf => {
                let mut list = field(1, &message(&metadata, LIST));
                for item in items {
                    list.extend(field(2, &message(item, schema(kind))));
                }
                envelope(&format!("{kind}List"), &list)
            }
        }
    }

    /// One event of a watch, with its framing.
    pub fn event(self, event: &str, kind: &str, object: &Value) -> Vec<u8> {
        match self {
            Self::Json => {
                let mut object = object.clone();
                // Go clients look up the object's type by both `kind` and `apiVersion`.
                if object["kind"].is_null() {
                    (object["kind"], object["apiVersion"]) = (kind.into(), group_version(kind).into());
                }
                let mut line = serde_json::json!({"type": event, "object": object}).to_string().into_bytes();
                line.push(b'\n');
                line
            }
            Self::Protobuf => {
                let object = envelope(kind, &message(object, schema(kind)));
                let frame = [field(1, event.as_bytes()), field(2, &field(1, &object))].concat();
                let length = u32::try_from(frame.len()).expect("a frame is small");
                [&length.to_be_bytes()[..], &frame].concat()
            }
        }
    }

    /// A `Status` object as the body of a reply.
    pub fn status(self, status: &Value) -> Vec<u8> {
        match self {
            Self::Json => status.to_string().into_bytes(),
            Self::Protobuf => envelope("Status", &message(status, STATUS)),
        }
    }
}

/// A field of a message: its name in JSON, its number, its type.
type Field = (&'static str, u32, Type);

#[derive(Clone, Copy)]
enum Type {
    Text,
    Number,
    Map,
    /// A string in JSON.
    Time,
    Message(&'static [Field]),
}

use Type::{Map, Message, Number, Text, Time};

fn schema(kind: &str) -> &'static [Field] {
    match kind {
        "Service" => SERVICE,
        "EndpointSlice" => SLICE,
        "Namespace" => NAMESPACE,
        "Pod" => POD,
        "Status" => STATUS,
        _ => panic!("no {kind} in protobuf"),
    }
}

fn message(value: &Value, fields: &[Field]) -> Vec<u8> {
    let mut message = Vec::new();
    for (name, number, kind) in fields {
        match &value[name] {
            Value::Null => {}
            Value::Array(values) => {
                values.iter().for_each(|value| message.extend(one(*number, value, *kind)))
            }
            value => message.extend(one(*number, value, *kind)),
        }
    }
    message
}

fn one(number: u32, value: &Value, kind: Type) -> Vec<u8> {
    let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned();
    match kind {
        Text => field(number, text(value).as_bytes()),
        Number => {
            let value = value.as_i64().or_else(|| value.as_bool().map(i64::from)).expect("it is a number");
            [varint(u64::from(number) << 3), varint(value.cast_unsigned())].concat()
        }
        // Any time: only its presence matters.
        Time => field(number, &[varint(1 << 3), varint(1)].concat()),
        Message(fields) => field(number, &message(value, fields)),
        Map => {
            let pairs = value.as_object().into_iter().flatten();
            let pair = |(key, value): (&String, &Value)| {
                field(number, &[field(1, key.as_bytes()), field(2, text(value).as_bytes())].concat())
            };
            pairs.flat_map(pair).collect()
        }
    }
}

fn group_version(kind: &str) -> &'static str {
    match kind {
        "EndpointSlice" => "discovery.k8s.io/v1",
        "ServiceImport" => "multicluster.x-k8s.io/v1alpha1",
        _ => "v1",
    }
}

fn envelope(kind: &str, object: &[u8]) -> Vec<u8> {
    let version = group_version(kind.strip_suffix("List").unwrap_or(kind));
    let meta = field(1, &[field(1, version.as_bytes()), field(2, kind.as_bytes())].concat());
    [&b"k8s\0"[..], &meta, &field(2, object), &field(3, b""), &field(4, b"")].concat()
}

fn field(number: u32, content: &[u8]) -> Vec<u8> {
    [&varint(u64::from(number) << 3 | 2)[..], &varint(content.len() as u64), content].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut octets = Vec::new();
    while value >= 0x80 {
        octets.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    octets.push(value as u8);
    octets
}

const META: &[Field] = &[
    ("name", 1, Text),
    ("namespace", 3, Text),
    ("uid", 5, Text),
    ("resourceVersion", 6, Text),
    ("generation", 7, Number),
    ("deletionTimestamp", 9, Time),
    ("labels", 11, Map),
    ("annotations", 12, Map),
    ("finalizers", 14, Text),
];
const LIST: &[Field] = &[("resourceVersion", 2, Text), ("continue", 3, Text)];
const STATUS: &[Field] = &[
    ("status", 2, Text),
    ("message", 3, Text),
    ("reason", 4, Text),
    (
        "details",
        5,
        Message(&[("causes", 4, Message(&[("reason", 1, Text)])), ("retryAfterSeconds", 5, Number)]),
    ),
    ("code", 6, Number),
];
const SERVICE: &[Field] = &[
    ("metadata", 1, Message(META)),
    ("spec", 2, Message(SERVICE_SPEC)),
    ("status", 3, Message(SERVICE_STATUS)),
];
const SERVICE_SPEC: &[Field] = &[
    (
        "ports",
        1,
        Message(&[("name", 1, Text), ("protocol", 2, Text), ("port", 3, Number), ("nodePort", 5, Number)]),
    ),
    ("selector", 2, Map),
    ("clusterIP", 3, Text),
    ("type", 4, Text),
    ("externalIPs", 5, Text),
    ("sessionAffinity", 7, Text),
    ("externalName", 10, Text),
    ("publishNotReadyAddresses", 13, Number),
    ("clusterIPs", 18, Text),
    ("ipFamilies", 19, Text),
];
const SERVICE_STATUS: &[Field] =
    &[("loadBalancer", 1, Message(&[("ingress", 1, Message(&[("ip", 1, Text), ("hostname", 2, Text)]))]))];
const SLICE: &[Field] = &[
    ("metadata", 1, Message(META)),
    ("endpoints", 2, Message(ENDPOINT)),
    ("ports", 3, Message(&[("name", 1, Text), ("protocol", 2, Text), ("port", 3, Number)])),
    ("addressType", 4, Text),
];
const ENDPOINT: &[Field] = &[
    ("addresses", 1, Text),
    ("conditions", 2, Message(&[("ready", 1, Number), ("serving", 2, Number), ("terminating", 3, Number)])),
    ("hostname", 3, Text),
    (
        "targetRef",
        4,
        Message(&[("kind", 1, Text), ("namespace", 2, Text), ("name", 3, Text), ("uid", 4, Text)]),
    ),
    ("nodeName", 6, Text),
    ("zone", 7, Text),
    ("hints", 8, Message(&[("forZones", 1, Message(&[("name", 1, Text)]))])),
];
const NAMESPACE: &[Field] = &[("metadata", 1, Message(META))];
const POD: &[Field] = &[
    ("metadata", 1, Message(META)),
    ("spec", 2, Message(&[("nodeName", 10, Text), ("hostNetwork", 11, Number)])),
    (
        "status",
        3,
        Message(&[("phase", 1, Text), ("podIP", 6, Text), ("podIPs", 12, Message(&[("ip", 1, Text)]))]),
    ),
];
