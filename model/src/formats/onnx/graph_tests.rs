use proptest::prelude::*;

use super::*;
use crate::onnx_writer as w;
use crate::onnx_writer::{FLOAT, INT64, bytes, external, node, number, tensor};

fn check(file: &[u8]) -> Result<Graph, GraphError> {
    let size = |location: &str| match location {
        "m.data" => Some(64),
        "sub/m.data" => Some(8),
        _ => None,
    };
    Graph::read(&file.to_vec(), &size)
}

/// `y = x + w`, with an initializer in another file.
fn small() -> w::Graph {
    let mut g = w::Graph::default();
    g.input("x", FLOAT, &["n", "4"]);
    g.output("y", FLOAT, &["n", "4"]);
    g.initializer(tensor("w", FLOAT, &[4], &external("m.data", 32, 16)));
    g.push(node("Add", &["x", "w"], &["y"], &[]));
    g
}

#[test]
fn sound_files_are_accepted() {
    let found = check(&small().file()).unwrap();
    assert_eq!((found.inputs, found.outputs), (vec!["x".to_owned()], vec!["y".to_owned()]));
    assert_eq!(found.locations, BTreeSet::from(["m.data".to_owned()]));
    assert!(!found.quantises_dynamically);

    let bert = w::Bert { width: 8, heads: 2, layers: 2, norm_eps: 1e-6, first_position: 2, id_type: INT64 };
    let weight = |name: &str| {
        let rows = if name.contains("_embeddings") { 16 } else { 8 };
        let shape = if name.ends_with("bias") || name.contains("Norm") { vec![8] } else { vec![rows, 8] };
        let values = vec![0.5; shape.iter().product::<u64>() as usize];
        (shape, values)
    };
    let found = check(&bert.graph(&weight).file()).unwrap();
    assert_eq!(found.inputs, ["input_ids", "attention_mask", "token_type_ids"]);
    assert!(found.locations.is_empty());

    // A subgraph sees the names before its node. Absent optional inputs have empty names, and inputs may have
    // defaults.
    let mut inner = w::Graph::default();
    inner.push(node("Clip", &["x", "", "w"], &["inner"], &[]));
    inner.output("inner", FLOAT, &["n"]);
    let mut outer = w::Graph::default();
    outer.input("x", FLOAT, &["n"]);
    outer.input("w", FLOAT, &[]);
    outer.floats("w", &[], &[1.0]);
    outer.output("y", FLOAT, &["n"]);
    let branches = [w::subgraph("then_branch", &inner), w::subgraph("else_branch", &inner)];
    outer.push(node("If", &["x"], &["y"], &branches));
    outer.push(node("DynamicQuantizeLinear", &["x"], &["a", "b", "c"], &[bytes(7, "ai.onnx")]));
    let found = check(&outer.file()).unwrap();
    assert_eq!(found.inputs, ["x"]);
    assert!(found.quantises_dynamically && !found.fuses_attention);

    let mut fused = small();
    let attention = [w::int("num_heads", 2), bytes(7, "com.microsoft")];
    fused.push(node("GroupQueryAttention", &["x", "x", "x"], &["z"], &attention));
    assert!(check(&fused.file()).unwrap().fuses_attention);

    // Several elements per byte, texts, and data that is not an array.
    let mut g = w::Graph::default();
    g.input("x", FLOAT, &["n"]);
    g.output("x", FLOAT, &["n"]);
    g.initializer(tensor("int4", 22, &[3], &[bytes(9, [1, 2])]));
    g.initializer(tensor("texts", 8, &[2], &[bytes(6, "a"), bytes(6, "")]));
    g.initializer(tensor("coded", 7, &[2], &[bytes(7, [1, 2])]));
    g.initializer(tensor("empty", 1, &[0, 5], &[]));
    check(&g.file()).unwrap();
}

#[test]
fn unsound_graphs_are_refused() {
    fn refused(change: impl FnOnce(&mut w::Graph), expect: &str) {
        let mut g = small();
        change(&mut g);
        let error = check(&g.file()).expect_err(expect).to_string();
        assert!(error.contains(expect), "{error}");
    }
    let named =
        |operator: &str, domain: &str| node(operator, &["x"], &["z"], &[bytes(3, "n7"), bytes(7, domain)]);
    refused(
        |g| g.push(named("Regex", "ai.onnx.contrib")),
        "node `n7`: operator `Regex` is of domain `ai.onnx.contrib`, expected one of ``, `ai.onnx`, `ai.onnx.ml`, `com.microsoft`",
    );
    for operator in REFUSED_OPERATORS {
        let message = format!("node `n7`: operator `{operator}` may read files or run code");
        refused(|g| g.push(named(operator, "com.microsoft")), &message);
    }
    refused(
        |g| {
            g.push(node("Add", &["x", "b"], &["a"], &[]));
            g.push(node("Add", &["x", "a"], &["b"], &[]));
        },
        "the node that gives `a` reads `b`, expected the name of an input",
    );
    refused(
        |g| g.push(node("Abs", &["x"], &["y"], &[])),
        "the node that gives `y` defines `y` a second time",
    );
    refused(|g| g.push(node("Abs", &["x"], &["w"], &[])), "defines `w` a second time");
    refused(|g| g.push(node("Split", &["x"], &["p", "p"], &[])), "defines `p` a second time");
    refused(|g| g.floats("w", &[1], &[1.0]), "an initializer defines `w` a second time");
    refused(|g| g.input("x", FLOAT, &[]), "an input of the graph defines `x` a second time");
    refused(|g| g.output("no", FLOAT, &[]), "output `no` is not the name of an input");
    refused(|g| g.fields.push(bytes(15, [])), "the file has sparse tensors");
    refused(
        |g| g.push(node("Constant", &[], &["z"], &[bytes(5, bytes(22, []))])),
        "the file has sparse tensors",
    );

    let mut deep = small();
    for _ in 0..8 {
        let mut outer = small();
        outer.fields.clear();
        outer.push(node("If", &["x"], &[], &[w::subgraph("then_branch", &deep)]));
        deep = outer;
    }
    refused(
        |g| g.push(node("If", &["x"], &[], &[w::subgraph("then_branch", &deep)])),
        "graphs inside of each other",
    );
    let mut shadow = w::Graph::default();
    shadow.push(node("Abs", &["x"], &["w"], &[]));
    refused(
        |g| g.push(node("If", &["x"], &[], &[w::subgraph("then_branch", &shadow)])),
        "the node that gives `w` defines `w` a second time",
    );
}

#[test]
fn unsound_tensors_are_refused() {
    let refused = |tensor: Vec<u8>, expect: &str| {
        let mut g = small();
        g.initializer(tensor);
        let error = check(&g.file()).expect_err(expect).to_string();
        assert!(error.contains(expect), "{error}");
    };
    let outside =
        |location: &str, offset, length| tensor("o", FLOAT, &[4], &external(location, offset, length));
    for location in [
        "/etc/passwd",
        "../m.data",
        "sub/../../m.data",
        "./m.data",
        "sub//m.data",
        "",
        "*/_ORT_MEM_ADDR_/*",
        "c:m",
        "a\\b",
        "a\nb",
    ] {
        refused(outside(location, 0, 16), "expected the relative path of a file of the model, without `..`");
    }
    refused(outside("other.data", 0, 16), "initializer `o` is stored in `other.data`, which is not a file");
    refused(outside("m.data", 49, 16), "is stored in `m.data` up to byte 65, but the file has 64 bytes");
    refused(outside("m.data", u64::MAX, 16), "but the file has 64 bytes");
    refused(outside("m.data", 0, 12), "initializer `o` of shape [4] has 12 bytes, expected 16");
    let key = |key: &str| bytes(13, [bytes(1, key), bytes(2, "sub/m.data")].concat());
    for odd in ["location", "prepacked_0"] {
        let fields = [external("m.data", 0, 16), vec![key(odd)]].concat();
        refused(tensor("o", FLOAT, &[4], &fields), &format!("has the key `{odd}` in its external data"));
    }
    refused(tensor("o", 8, &[4], &external("m.data", 0, 16)), "has shape [4], which is too large");
    refused(tensor("t", FLOAT, &[2], &[bytes(9, [0; 4])]), "of shape [2] has 4 bytes, expected 8");
    refused(tensor("t", FLOAT, &[2], &[]), "of shape [2] has 0 bytes, expected 8");
    refused(tensor("t", INT64, &[9], &[bytes(7, [1, 2])]), "of shape [9] has 4 bytes, expected 9");
    refused(tensor("t", FLOAT, &[1 << 41, 0], &[]), "which is too large");
    refused(tensor("t", FLOAT, &[u64::MAX], &[]), "which is too large");
    refused(tensor("t", FLOAT, &[1 << 31, 1 << 31, 4], &[bytes(9, [0; 4])]), "which is too large");
    refused(tensor("t", 27, &[1], &[bytes(9, [0])]), "has data type 27, expected a type from 1 to 26");
    // Protobuf's parsers cut numbers to 32 bits, so this is an external tensor for a runtime.
    let cut = tensor("t", FLOAT, &[1], &[bytes(9, [0; 4]), number(14, 1 << 32 | 1)]);
    refused(cut, "has data location 4294967297, expected 0 or 1");

    let mut g = small();
    let value =
        bytes(5, [bytes(1, "value"), bytes(5, tensor("", FLOAT, &[4], &external("m.data", 0, 16)))].concat());
    g.push(node("Constant", &[], &["c"], &[value]));
    let error = check(&g.file()).unwrap_err().to_string();
    assert!(error.starts_with("a tensor of the node that gives `c` is stored outside the file"), "{error}");
}

#[test]
fn other_parts_of_a_file_are_refused() {
    let refused = |file: Vec<u8>, expect: &str| {
        let error = check(&file).expect_err(expect).to_string();
        assert!(error.contains(expect), "{error}");
    };
    let file = small().file();
    refused([file.clone(), bytes(25, [])].concat(), "functions of its own");
    refused([file.clone(), bytes(20, [])].concat(), "training information");
    refused([file.clone(), bytes(7, small().message())].concat(), "several graphs");
    let two = bytes(5, bytes(5, tensor("", FLOAT, &[], &[bytes(9, [0; 4])])).repeat(2));
    let mut g = small();
    g.push(node("Constant", &[], &["c"], &[two]));
    refused(g.file(), "an attribute with two values");
    // A number above 29 bits is another field for parsers that cut it.
    refused([file.clone(), w::varint((1 << 29) << 3), vec![0]].concat(), "damaged");
    // The domain of the file, `ORTM`, at the offset of ORT's mark.
    refused([bytes(4, "xxORTM"), file].concat(), "the mark of a file in ORT format");
    refused(number(1, 8), "no graph");
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(part in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _anything = check(&part);
        let _anything = check(&bytes(7, &part));
        let _anything = check(&bytes(7, bytes(1, bytes(5, part))));
    }
}
