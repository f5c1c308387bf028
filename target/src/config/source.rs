//! Where in the file a value stands.
//!
//! `serde_yaml` turns the file into structs and forgets positions; this module
//! reads the same text a second time into a tree that keeps them, so that an error
//! about meaning ("this array does not exist") can point at the line and column.
//! Keys that occur twice are kept, for `structure` to report.

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{DuplicateKeyPolicy, MergeKeyPolicy, Spanned};

/// Line and column, both counted from 1; 0 where nothing is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Position {
    /// Line, from 1.
    pub line: u64,
    /// Column in characters, from 1.
    pub column: u64,
}

/// A YAML value without its position.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Mapping(Vec<(String, Position, Node)>),
}

/// A YAML value and where it begins.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    pub(super) value: Value,
    pub(super) position: Position,
}

/// The way to a value: `arrays`, 0, `members`, 2.
#[derive(Debug, Clone, Default)]
pub(super) struct At(Vec<Step>);

#[derive(Debug, Clone)]
enum Step {
    Key(String),
    Index(usize),
}

impl At {
    /// The whole file.
    pub(super) fn root() -> At {
        At::default()
    }

    /// The value of a key of this mapping.
    pub(super) fn key(&self, key: &str) -> At {
        self.with(Step::Key(key.to_owned()))
    }

    /// An entry of this list.
    pub(super) fn index(&self, index: usize) -> At {
        self.with(Step::Index(index))
    }

    fn with(&self, step: Step) -> At {
        let mut steps = self.0.clone();
        steps.push(step);
        At(steps)
    }
}

/// The tree of a file, or `None` if it cannot be parsed.
pub(super) fn parse(text: &str) -> Option<Node> {
    let options = serde_saphyr::options! {
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        merge_keys: MergeKeyPolicy::AsOrdinary,
        strict_booleans: true,
    };
    serde_saphyr::from_str_with_options::<Spanned<Tree>>(text, options).ok().map(Node::from)
}

/// Position of a value, or of the closest thing around it that is in the file.
pub(super) fn locate(root: &Node, at: &At) -> Position {
    let mut node = root;
    for step in &at.0 {
        let next = match (step, &node.value) {
            (Step::Key(key), Value::Mapping(entries)) => {
                entries.iter().find(|(k, ..)| k == key).map(|(_, _, value)| value)
            }
            (Step::Index(index), Value::List(nodes)) => nodes.get(*index),
            _ => None,
        };
        match next {
            Some(next) => node = next,
            None => break,
        }
    }
    node.position
}

/// [`Value`] as serde builds it, before positions are taken out of `Spanned`.
enum Tree {
    Scalar(Value),
    List(Vec<Spanned<Tree>>),
    Mapping(Vec<(Spanned<String>, Spanned<Tree>)>),
}

fn position(location: serde_saphyr::Location) -> Position {
    Position { line: location.line(), column: location.column() }
}

impl From<Spanned<Tree>> for Node {
    fn from(spanned: Spanned<Tree>) -> Node {
        let value = match spanned.value {
            Tree::Scalar(value) => value,
            Tree::List(nodes) => Value::List(nodes.into_iter().map(Node::from).collect()),
            Tree::Mapping(entries) => Value::Mapping(
                entries
                    .into_iter()
                    .map(|(key, value)| (key.value, position(key.referenced), Node::from(value)))
                    .collect(),
            ),
        };
        Node { value, position: position(spanned.referenced) }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Null))
    }

    fn visit_none<E: de::Error>(self) -> Result<Tree, E> {
        self.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Bool(value)))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Integer(value.into())))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Integer(value.into())))
    }

    fn visit_i128<E: de::Error>(self, value: i128) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Integer(value)))
    }

    fn visit_u128<E: de::Error>(self, value: u128) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Integer(i128::try_from(value).unwrap_or(i128::MAX))))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Float(value)))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Text(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Tree, A::Error> {
        let mut nodes = Vec::new();
        while let Some(node) = access.next_element()? {
            nodes.push(node);
        }
        Ok(Tree::List(nodes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Tree, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = access.next_entry()? {
            entries.push(entry);
        }
        Ok(Tree::Mapping(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "a: 1\nb:\n  - x: [one, 'two', off]\n    y: ~\n    y: true\nc: {d: 1.5}\n";

    fn at(path: &At) -> (u64, u64) {
        let root = parse(TEXT).expect("it parses");
        let found = locate(&root, path);
        (found.line, found.column)
    }

    #[test]
    fn every_kind_of_value_has_its_place() {
        let x = At::root().key("b").index(0).key("x");
        assert_eq!(at(&At::root().key("a")), (1, 4));
        assert_eq!(at(&x), (3, 8));
        assert_eq!(at(&x.index(0)), (3, 9));
        assert_eq!(at(&x.index(1)), (3, 14));
        assert_eq!(at(&At::root().key("b").index(0).key("y")), (4, 8));
        assert_eq!(at(&At::root().key("c").key("d")), (6, 8));
    }

    #[test]
    fn what_is_absent_is_found_at_what_is_around_it() {
        let entry = At::root().key("b").index(0);
        assert_eq!(at(&entry.key("z").key("zz")), at(&entry));
        assert_eq!(at(&entry.key("x").index(9)), (3, 8));
        assert_eq!(at(&At::root().key("a").key("deeper")), (1, 4));
    }

    #[test]
    fn off_is_text_as_it_is_for_serde_yaml() {
        let root = parse("off").expect("it parses");
        assert_eq!(root.value, Value::Text("off".into()));
        assert_eq!(
            serde_yaml::from_str::<serde_yaml::Value>("off").expect("it parses"),
            serde_yaml::Value::String("off".into())
        );
    }
}
