//! The published schema accepts what the reader accepts and refuses what it can see to be wrong.
//!
//! The validator here knows the keywords that the schema uses and fails on any other, so that a new keyword
//! can't pass unchecked. YAML scalars become JSON by the core schema's rules for the plain ones.
#![expect(clippy::disallowed_methods, reason = "a test reads the catalogs beside it")]

use diecast_core_experiment::json_schema;
use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Value, json};

/// One event's value; `next` must not be at an end event.
fn value<'a>(events: &mut impl Iterator<Item = Event<'a>>, first: Event<'a>) -> Value {
    match first {
        Event::Scalar(text, ScalarStyle::Plain, ..) => plain(&text),
        Event::Scalar(text, ..) => json!(text),
        Event::SequenceStart(..) => {
            let mut items = Vec::new();
            loop {
                match events.next().unwrap() {
                    Event::SequenceEnd => return Value::Array(items),
                    event => items.push(value(events, event)),
                }
            }
        }
        Event::MappingStart(..) => {
            let mut map = Map::new();
            loop {
                let key = match events.next().unwrap() {
                    Event::MappingEnd => return Value::Object(map),
                    Event::Scalar(text, ..) => text.into_owned(),
                    other => panic!("{other:?}"),
                };
                let first = events.next().unwrap();
                map.insert(key, value(events, first));
            }
        }
        other => panic!("{other:?}"),
    }
}

fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" => Value::Null,
        "true" => json!(true),
        "false" => json!(false),
        _ => match (text.parse::<i64>(), text.parse::<f64>()) {
            (Ok(n), _) => json!(n),
            (_, Ok(n)) if text.starts_with(|c: char| c.is_ascii_digit() || c == '-') => json!(n),
            _ => json!(text),
        },
    }
}

fn to_json(yaml: &str) -> Value {
    let mut events = Parser::new_from_str(yaml)
        .map(|e| e.unwrap().0)
        .filter(|e| !matches!(e, Event::StreamStart | Event::DocumentStart(_)));
    let first = events.next().unwrap();
    value(&mut events, first)
}

/// The first fault of `value`, as a path and a keyword.
fn fault(schema: &Value, value: &Value, path: &str) -> Option<String> {
    let schema = schema.as_object().unwrap();
    let object = value.as_object();
    let number = value.as_f64();
    schema.iter().find_map(|(keyword, rule)| {
        let wrong = match keyword.as_str() {
            "$ref" => {
                let root = json_schema();
                let place = rule.as_str().unwrap().strip_prefix('#').unwrap();
                return fault(root.pointer(place).unwrap(), value, path);
            }
            "$schema" | "$defs" | "title" | "description" | "examples" | "format" => false,
            "type" => {
                let named = |name: &Value| match name.as_str().unwrap() {
                    "object" => value.is_object(),
                    "array" => value.is_array(),
                    "string" => value.is_string(),
                    "integer" => value.is_i64(),
                    "number" => value.is_number(),
                    "boolean" => value.is_boolean(),
                    other => panic!("type {other}"),
                };
                !rule.as_array().map_or_else(|| named(rule), |all| all.iter().any(named))
            }
            "const" => value != rule,
            "enum" => !rule.as_array().unwrap().contains(value),
            "pattern" => {
                value.as_str().is_some_and(|t| !regex_lite::Regex::new(rule.as_str().unwrap()).unwrap().is_match(t))
            }
            "minLength" => value.as_str().is_some_and(|t| (t.chars().count() as u64) < rule.as_u64().unwrap()),
            "minItems" => value.as_array().is_some_and(|a| (a.len() as u64) < rule.as_u64().unwrap()),
            "minProperties" => object.is_some_and(|o| (o.len() as u64) < rule.as_u64().unwrap()),
            "minimum" => number.is_some_and(|n| n < rule.as_f64().unwrap()),
            "maximum" => number.is_some_and(|n| n > rule.as_f64().unwrap()),
            "exclusiveMinimum" => number.is_some_and(|n| n <= rule.as_f64().unwrap()),
            "required" => {
                object.is_some_and(|o| rule.as_array().unwrap().iter().any(|k| !o.contains_key(k.as_str().unwrap())))
            }
            "oneOf" => rule.as_array().unwrap().iter().filter(|s| fault(s, value, path).is_none()).count() != 1,
            "anyOf" => rule.as_array().unwrap().iter().all(|s| fault(s, value, path).is_some()),
            "propertyNames" => {
                return object?.keys().find_map(|k| fault(rule, &json!(k), &format!("{path}.{k}")));
            }
            "properties" => {
                return object?.iter().find_map(|(k, v)| fault(rule.get(k)?, v, &format!("{path}.{k}")));
            }
            "additionalProperties" => {
                let known = schema.get("properties").and_then(Value::as_object);
                let mut others = object?.iter().filter(|(k, _)| !known.is_some_and(|p| p.contains_key(*k)));
                return match rule {
                    Value::Bool(false) => others.next().map(|(k, _)| format!("{path}.{k}: {keyword}")),
                    rule => others.find_map(|(k, v)| fault(rule, v, &format!("{path}.{k}"))),
                };
            }
            "items" => {
                let items = value.as_array()?.iter().enumerate();
                return { items }.find_map(|(i, v)| fault(rule, v, &format!("{path}[{i}]")));
            }
            other => panic!("the schema uses the keyword {other}, which this test does not know"),
        };
        wrong.then(|| format!("{path}: {keyword}"))
    })
}

fn read(name: &str) -> String {
    std::fs::read_to_string(format!("{}/tests/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

#[test]
fn right_catalogs_pass() {
    for name in ["good/web-tier.yaml", "good/everything.yaml", "good/links.yaml"] {
        assert_eq!(fault(&json_schema(), &to_json(&read(name)), "$"), None, "{name}");
    }
}

#[test]
fn what_a_schema_can_see_is_refused() {
    let cases = [
        ("unknown-section", "$.programms: additionalProperties"),
        ("negative-count", "$.nodes.srv.count: minimum"),
        ("zero-cores", "$.machine_types.box.cores: minimum"),
        ("zero-speed", "$.machine_types.box.speed: exclusiveMinimum"),
        ("run-as-text", "$.programs[0].run: type"),
        ("empty-run", "$.programs[0].run: minItems"),
        ("two-readiness-checks", "$.programs[0].ready: oneOf"),
        ("metric-without-source", "$.metrics.rate: oneOf"),
        ("unknown-combine", "$.metrics.rate.combine: enum"),
        ("other-version", "$.diecast: const"),
        ("queue-without-unit", "$.topology.links[0].queue: anyOf"),
        ("queue-in-bits", "$.topology.links[0].queue: anyOf"),
        ("wrong-unit", "$.programs[0].ready.within: pattern"),
        ("bad-host-name", "$.metrics.rate.from: anyOf"),
        ("absolute-host-path", "$.programs[0].files./etc/a: pattern"),
        ("load-without-links-key", "$.topology: anyOf"),
    ];
    for (name, expected) in cases {
        let found = fault(&json_schema(), &to_json(&read(&format!("bad/{name}.yaml"))), "$");
        assert_eq!(found.as_deref(), Some(expected), "{name}");
    }
}
