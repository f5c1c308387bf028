//! The form of the file: known keys, required keys, kinds of values.
//!
//! `serde_yaml` checks the same while it reads, but stops at the first fault and
//! does not know what would be right. When it has refused a file, this module walks
//! the file beside the JSON Schema of the structs that it was read into, and reports
//! everything that does not fit. It knows nothing about raidfabric: what it says
//! comes from the schema's titles, types, constants and examples.

use serde_json::Value as Json;

use super::error::{Problem, closest};
use super::source::{Node, Position, Value};

/// Everything in the file that does not fit the schema.
pub(super) fn check(schema: &Json, file: &Node) -> Vec<Problem> {
    if file.value == Value::Null {
        let problem = Problem::new(file.position, "the file is empty");
        return vec![problem.help("`raidfabric schema` and the examples show what it holds")];
    }
    let mut checker = Checker { schema, problems: Vec::new() };
    checker.node(schema, file, "the file");
    checker.problems
}

struct Checker<'s> {
    schema: &'s Json,
    problems: Vec<Problem>,
}

impl<'s> Checker<'s> {
    /// Follows references to the definition itself.
    fn resolve(&self, mut schema: &'s Json) -> &'s Json {
        // A bound, should a schema ever refer to itself.
        for _ in 0..16 {
            let reference = schema.get("$ref").or_else(|| {
                // Draft 7 allows nothing beside `$ref`, so that it is wrapped.
                schema.get("allOf").and_then(|all| all.get(0)).and_then(|one| one.get("$ref"))
            });
            let Some(path) = reference.and_then(Json::as_str) else { break };
            match self.schema.pointer(path.trim_start_matches('#')) {
                Some(definition) => schema = definition,
                None => break,
            }
        }
        schema
    }

    /// The schema's alternatives, or itself.
    fn alternatives(&self, schema: &'s Json) -> Vec<&'s Json> {
        let schema = self.resolve(schema);
        match schema.get("anyOf").or_else(|| schema.get("oneOf")).and_then(Json::as_array) {
            Some(any) => any.iter().flat_map(|one| self.alternatives(one)).collect(),
            None => vec![schema],
        }
    }

    fn node(&mut self, schema: &'s Json, node: &Node, name: &str) {
        let alternatives = self.alternatives(schema);
        // Where a number is one of several choices, what is no such number is not taken for text
        // either: `serde_yaml` does not convert while it tries the choices.
        let choice = alternatives.len() > 1
            && alternatives.iter().any(|one| types(one).contains(&"integer"));
        let fitting = alternatives.iter().copied().find(|one| fits(one, &node.value, !choice));
        match (fitting, &node.value) {
            (Some(one), Value::Mapping(entries)) => self.mapping(one, entries, node.position),
            (Some(one), Value::List(nodes)) => {
                if let Some(items) = one.get("items") {
                    for node in nodes {
                        self.node(items, node, &format!("an entry of {name}"));
                    }
                }
            }
            (Some(_), _) => {}
            (None, value) => {
                let problem = self.misfit(schema, &alternatives, value, name, node.position);
                self.problems.push(problem);
            }
        }
    }

    fn mapping(&mut self, schema: &'s Json, entries: &[(String, Position, Node)], at: Position) {
        static NONE: std::sync::LazyLock<serde_json::Map<String, Json>> =
            std::sync::LazyLock::new(serde_json::Map::new);
        let known = schema.get("properties").and_then(Json::as_object).unwrap_or(&NONE);
        let what = schema.get("title").and_then(Json::as_str).unwrap_or("a mapping");
        let keys = || known.keys().map(String::as_str);
        for (i, (key, position, value)) in entries.iter().enumerate() {
            if entries[..i].iter().any(|(earlier, ..)| earlier == key) {
                let problem = Problem::new(*position, format!("`{key}` occurs twice in {what}"));
                self.problems.push(problem.help("keep one of them"));
            } else if let Some(schema) = known.get(key) {
                self.node(schema, value, &format!("`{key}`"));
            } else {
                let absent = keys().filter(|k| entries.iter().all(|(have, ..)| have != k));
                let list = keys().collect::<Vec<_>>().join(", ");
                let help = match closest(key, absent) {
                    Some(meant) => format!("did you mean `{meant}`? Known keys: {list}"),
                    None => format!("known keys: {list}"),
                };
                let problem = Problem::new(*position, format!("unknown key `{key}` in {what}"));
                self.problems.push(problem.help(help));
            }
        }
        let required = schema.get("required").and_then(Json::as_array);
        for key in required.into_iter().flatten().filter_map(Json::as_str) {
            if entries.iter().all(|(have, ..)| have != key) {
                let problem = Problem::new(at, format!("{what} needs the key `{key}`"));
                let help = known.get(key).map(|schema| self.describe(schema));
                self.problems.push(problem.help(format!("add it: {}", help.unwrap_or_default())));
            }
        }
    }

    /// The problem of a value that fits none of the alternatives.
    fn misfit(
        &self,
        schema: &'s Json,
        alternatives: &[&'s Json],
        value: &Value,
        name: &str,
        at: Position,
    ) -> Problem {
        let wanted = self.describe(schema);
        let words: Vec<&str> = alternatives.iter().flat_map(|one| constants(one)).collect();
        let problem = match value {
            Value::Mapping(_) => Problem::new(at, format!("{name} must not be a mapping")),
            Value::List(_) => Problem::new(at, format!("{name} must not be a list")),
            Value::Null => Problem::new(at, format!("{name} has no value")),
            scalar => Problem::new(at, format!("{name} cannot be `{}`", scalar_text(scalar))),
        };
        let meant = closest(&scalar_text(value), words);
        problem.help(match meant {
            Some(word) => format!("did you mean `{word}`? It must be {wanted}"),
            None => format!("it must be {wanted}"),
        })
    }

    /// What a value must be, in words.
    fn describe(&self, schema: &'s Json) -> String {
        let kind = self.describe_kind(schema);
        match schema.get("examples").and_then(|examples| examples.get(0)) {
            Some(example) => format!("{kind}, such as {example}"),
            None => kind,
        }
    }

    fn describe_kind(&self, schema: &'s Json) -> String {
        let schema = self.resolve(schema);
        if let Some(title) = schema.get("title").and_then(Json::as_str) {
            return title.to_owned();
        }
        let branches = schema.get("anyOf").or_else(|| schema.get("oneOf")).and_then(Json::as_array);
        if let Some(branches) = branches {
            let kinds = branches.iter().map(|branch| self.describe_kind(branch));
            return either(kinds.filter(|kind| !kind.is_empty()).collect());
        }
        let words = constants(schema);
        if !words.is_empty() {
            return either(words.iter().map(|word| format!("`{word}`")).collect());
        }
        let kinds = types(schema).into_iter().filter_map(|kind| match kind {
            "string" => Some("text"),
            "integer" => Some("a whole number"),
            "boolean" => Some("`true` or `false`"),
            "array" => Some("a list"),
            "object" => Some("a mapping"),
            _ => None,
        });
        either(kinds.map(str::to_owned).collect())
    }
}

/// `a`, `a or b`, `a, b or c`.
fn either(mut kinds: Vec<String>) -> String {
    match kinds.pop() {
        None => String::new(),
        Some(last) if kinds.is_empty() => last,
        Some(last) => format!("{} or {last}", kinds.join(", ")),
    }
}

/// The kinds that a schema without alternatives allows.
fn types(schema: &Json) -> Vec<&str> {
    match schema.get("type") {
        Some(Json::String(one)) => vec![one.as_str()],
        Some(Json::Array(several)) => several.iter().filter_map(Json::as_str).collect(),
        _ => Vec::new(),
    }
}

/// The words that a schema without alternatives allows, if it allows only words.
fn constants(schema: &Json) -> Vec<&str> {
    if let Some(word) = schema.get("const").and_then(Json::as_str) {
        return vec![word];
    }
    let list = schema.get("enum").and_then(Json::as_array);
    list.into_iter().flatten().filter_map(Json::as_str).collect()
}

/// Whether a value is of the kind that a schema without alternatives allows; what
/// is inside a list or a mapping is looked at later. Whoever `converts` takes any scalar for text.
fn fits(schema: &Json, value: &Value, converts: bool) -> bool {
    let allows = |kind: &str| types(schema).contains(&kind);
    // `serde_yaml` takes any scalar for text, as YAML's authors write `name: 17`.
    let as_text = || {
        let words = constants(schema);
        converts
            && allows("string")
            && (words.is_empty() || words.contains(&scalar_text(value).as_str()))
    };
    match value {
        Value::Null => allows("null"),
        Value::Bool(_) => allows("boolean") || as_text(),
        Value::Integer(number) => {
            (allows("integer") && u64::try_from(*number).is_ok()) || as_text()
        }
        Value::Float(_) => allows("number") || as_text(),
        Value::Text(text) => {
            let words = constants(schema);
            allows("string") && (words.is_empty() || words.contains(&text.as_str()))
        }
        Value::List(_) => allows("array"),
        Value::Mapping(_) => allows("object"),
    }
}

fn scalar_text(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Integer(value) => value.to_string(),
        Value::Float(value) => value.to_string(),
        Value::Text(value) => value.clone(),
        Value::List(_) => "a list".to_owned(),
        Value::Mapping(_) => "a mapping".to_owned(),
    }
}
