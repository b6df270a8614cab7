//! The JSON Schema of a catalog, made from the grammar's tables, for editors and other tools.
//!
//! It says what a schema can say: keys, types and the form of quantities. References between names, links
//! that attach each node once and the like are only checked by [`crate::parse`].

use serde_json::{Map, Value, json};

use crate::grammar::{CATALOG, Section, Shape, VERSION};
use crate::grammar_net::{BACK, DISCIPLINE, JITTER, LOSS, PARAMETERS};
use crate::quantity::Dimension;

/// Sections that stand in many places: written once and referred to.
const SHARED: [(&str, &Section); 5] =
    [("back", &BACK), ("discipline", &DISCIPLINE), ("jitter", &JITTER), ("link", &PARAMETERS), ("loss", &LOSS)];

/// Names that become host names.
const HOST_NAME: &str = "^[a-z0-9]([a-z0-9-]{0,55}[a-z0-9])?$";
/// One or two of them.
const LINK_NAME: &str = "^[a-z0-9-]{1,57}(:[a-z0-9-]{1,57})?$";
/// Names that are only referred to.
const NAME: &str = "^[A-Za-z][A-Za-z0-9_-]{0,63}$";
/// Paths in a node.
const NODE_PATH: &str = "^/";
/// An IP address, one of version 6 in brackets, and a port.
const HOST_ADDRESS: &str = "^([0-9.]+|\\[[0-9A-Fa-f:.]+\\]):[0-9]{1,5}$";
/// Paths beside the catalog.
const RELATIVE_PATH: &str = "^[^/]";

/// The schema (draft 2020-12).
pub fn json_schema() -> Value {
    let mut schema = in_full(&CATALOG);
    let head = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "DieCast catalog",
        "$defs": SHARED.iter().map(|(name, s)| ((*name).to_owned(), in_full(s))).collect::<Map<_, _>>(),
        "description": "The original system in original units: machines, network, programs, workload and metrics.",
    });
    if let (Value::Object(schema), Value::Object(head)) = (&mut schema, head) {
        schema.extend(head);
    }
    schema
}

fn section(s: &'static Section) -> Value {
    match SHARED.iter().find(|(_, shared)| std::ptr::eq(*shared, s)) {
        Some((name, _)) => json!({"$ref": format!("#/$defs/{name}")}),
        None => in_full(s),
    }
}

fn in_full(s: &Section) -> Value {
    let mut properties = Map::new();
    for field in s.fields {
        let mut value = shape(field.shape);
        if let Value::Object(object) = &mut value {
            object.insert("description".to_owned(), json!(field.about));
        }
        properties.insert(field.name.to_owned(), value);
    }
    let required: Vec<&str> = s.fields.iter().filter(|f| f.required).map(|f| f.name).collect();
    let mut out = json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    });
    if !s.one_of.is_empty() {
        out["oneOf"] = s.one_of.iter().map(|key| json!({"required": [key]})).collect();
    }
    if !s.any_of.is_empty() {
        out["anyOf"] = s.any_of.iter().map(|key| json!({"required": [key]})).collect();
    }
    out
}

fn shape(shape: Shape) -> Value {
    match shape {
        Shape::Version => json!({"const": VERSION}),
        Shape::HostName => json!({"type": "string", "pattern": HOST_NAME}),
        Shape::Name => json!({"type": "string", "pattern": NAME}),
        Shape::Text => json!({"type": "string", "minLength": 1}),
        Shape::NodePath => json!({"type": "string", "pattern": NODE_PATH}),
        Shape::Count { max } => json!({"type": "integer", "minimum": 1, "maximum": max}),
        Shape::Speed => json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1000}),
        Shape::Score => json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1_000_000}),
        Shape::Quantity(dimension) => quantity(dimension),
        Shape::Signed(dimension) => signed(dimension),
        Shape::AnyQuantity(dimensions) => {
            json!({"anyOf": dimensions.iter().map(|d| quantity(d)).collect::<Vec<_>>()})
        }
        Shape::QuantityOr(dimension, more) => json!({"anyOf": [quantity(dimension), section(more)]}),
        Shape::ChoiceOr(words, more) => json!({"anyOf": [{"enum": words}, section(more)]}),
        Shape::Flag => json!({"type": "boolean"}),
        Shape::OneOrMore => {
            let name = json!({"type": "string", "pattern": HOST_NAME});
            json!({"anyOf": [name, {"type": "array", "items": name, "minItems": 1}]})
        }
        Shape::HostNames => json!({"type": "array", "items": {"type": "string", "pattern": HOST_NAME}}),
        Shape::Links => {
            let name = json!({"type": "string", "pattern": LINK_NAME});
            json!({"anyOf": [name, {"type": "array", "items": name, "minItems": 1}]})
        }
        Shape::Sides => json!({"type": "array", "items": self::shape(Shape::OneOrMore)}),
        Shape::Words => json!({"type": "array", "items": scalar(), "minItems": 1}),
        Shape::Files => json!({
            "type": "object",
            "minProperties": 1,
            "propertyNames": {"pattern": NODE_PATH},
            "additionalProperties": {"type": "string", "pattern": RELATIVE_PATH},
        }),
        Shape::Env => json!({"type": "object", "minProperties": 1, "additionalProperties": scalar()}),
        Shape::Parameters => json!({
            "type": "object",
            "minProperties": 1,
            "propertyNames": {"pattern": NAME},
            "additionalProperties": scalar(),
        }),
        Shape::Port => json!({"type": "integer", "minimum": 1, "maximum": 65535}),
        Shape::HostAddress => json!({"type": "string", "pattern": HOST_ADDRESS}),
        Shape::HttpTarget => json!({"type": "string", "pattern": "^:[0-9]+/"}),
        Shape::JsonPath => json!({"type": "string", "pattern": "^\\$"}),
        Shape::Pattern => json!({"type": "string", "format": "regex", "minLength": 1}),
        Shape::Choice(words) => json!({"enum": words}),
        Shape::Statistics => {
            let one = json!({"type": "string", "pattern": "^(mean|min|max|p[0-9]{1,3}(\\.[0-9]{1,4})?)$"});
            json!({"anyOf": [one, {"type": "array", "items": one, "minItems": 1}]})
        }
        Shape::Section(s) => section(s),
        Shape::MapOfHosts(s) => map_of(HOST_NAME, s),
        Shape::MapOf(s) => map_of(NAME, s),
        Shape::ListOf(s) => json!({"type": "array", "items": section(s)}),
    }
}

/// Numbers and truth values are text to the reader; a schema sees what YAML makes of them.
fn scalar() -> Value {
    json!({"type": ["string", "number", "boolean"]})
}

fn map_of(names: &str, s: &'static Section) -> Value {
    json!({
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"pattern": names},
        "additionalProperties": section(s),
    })
}

fn quantity(dimension: &Dimension) -> Value {
    number("", dimension)
}

fn signed(dimension: &Dimension) -> Value {
    number("[-+]?", dimension)
}

fn number(sign: &str, dimension: &Dimension) -> Value {
    let units: Vec<&str> = dimension.units.iter().map(|u| u.name).collect();
    json!({
        "type": "string",
        "pattern": format!("^{sign}[0-9]+(\\.[0-9]+)? *({})$", units.join("|")),
        "examples": [dimension.example],
    })
}
