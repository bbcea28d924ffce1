package main

import (
	"fmt"
	"strconv"
	"strings"
)

// The part of TensorFlow that half_plus_two needs: float tensors, added and multiplied, and examples taken apart. A model that needs more is
// refused when it is loaded.

type tensor struct {
	dtype   dataType
	shape   []int
	floats  []float32
	ints    []int
	strings []string
}

func (t *tensor) elements() int {
	n := 1
	for _, size := range t.shape {
		n *= size
	}
	return n
}

func shapeText(sizes []int) string {
	words := make([]string, len(sizes))
	for i, size := range sizes {
		words[i] = strconv.Itoa(size)
	}
	return "[" + strings.Join(words, ",") + "]"
}

// `name:1` and `^name` as the node's name and the output's number.
func endpoint(reference string) (string, int) {
	name, number, found := strings.Cut(strings.TrimPrefix(reference, "^"), ":")
	if !found {
		return name, 0
	}
	output, _ := strconv.Atoi(number)
	return name, output
}

// The first operation below an output that cannot be computed here, or nothing.
func (g *metaGraph) unknownOperation(reference string, seen map[string]bool) string {
	name, _ := endpoint(reference)
	if seen[name] {
		return ""
	}
	seen[name] = true
	n := g.nodes[name]
	if n == nil {
		return "none of the name " + name
	}
	switch n.op {
	case "Placeholder", "PlaceholderWithDefault", "Const", "Variable", "VariableV2", "VarHandleOp":
		return ""
	case "Identity", "ReadVariableOp", "Add", "AddV2", "Mul", "ParseExample", "Reshape":
	default:
		return n.op
	}
	for _, input := range n.inputs {
		if op := g.unknownOperation(input, seen); op != "" {
			return op
		}
	}
	return ""
}

type run struct {
	graph     *metaGraph
	variables map[string]*tensor
	feeds     map[string]*tensor // by `name:0`
}

func (r *run) compute(reference string) (*tensor, *status) {
	name, output := endpoint(reference)
	if t := r.feeds[fmt.Sprintf("%s:%d", name, output)]; t != nil {
		return t, nil
	}
	n := r.graph.nodes[name]
	switch n.op {
	case "Const":
		return n.value, nil
	case "Placeholder", "PlaceholderWithDefault":
		if n.op == "PlaceholderWithDefault" {
			return r.compute(n.inputs[0])
		}
		return nil, invalid("You must feed a value for placeholder tensor '%s'\n\t [[{{node %s}}]]", name, name)
	case "Variable", "VariableV2", "VarHandleOp":
		if t := r.variables[name]; t != nil {
			return t, nil
		}
		return nil, fail("FAILED_PRECONDITION", "Attempting to use uninitialized value %s\n\t [[{{node %s}}]]", name, name)
	case "Identity", "ReadVariableOp":
		return r.compute(n.inputs[0])
	case "ParseExample":
		return r.parse(n, output)
	}
	left, failed := r.compute(n.inputs[0])
	if failed != nil {
		return nil, failed
	}
	right, failed := r.compute(n.inputs[1])
	if failed != nil {
		return nil, failed
	}
	if n.op == "Reshape" {
		return reshape(n, left, right.ints)
	}
	return combine(n, left, right)
}

func reshape(n *node, t *tensor, sizes []int) (*tensor, *status) {
	out, known, open := *t, 1, -1
	out.shape = append([]int{}, sizes...)
	for i, size := range sizes {
		if size < 0 {
			open = i
		} else {
			known *= size
		}
	}
	if open >= 0 && known > 0 {
		out.shape[open] = t.elements() / known
	}
	if out.elements() != t.elements() {
		return nil, invalid("Input to reshape is a tensor with %d values, but the requested shape has %d\n\t [[{{node %s}}]]", t.elements(), out.elements(), n.name)
	}
	return &out, nil
}

func combine(n *node, left, right *tensor) (*tensor, *status) {
	for i, t := range []*tensor{left, right} {
		if t.dtype != dtFloat {
			return nil, invalid("Expects arg[%d] to be float but %v is provided\n\t [[{{node %s}}]]", i, t.dtype, n.name)
		}
	}
	out := &tensor{dtype: dtFloat, shape: left.shape}
	if len(left.shape) == 0 {
		out.shape = right.shape
	}
	if len(left.shape) > 0 && len(right.shape) > 0 && shapeText(left.shape) != shapeText(right.shape) {
		return nil, invalid("Incompatible shapes: %s vs. %s\n\t [[{{node %s}}]]", shapeText(left.shape), shapeText(right.shape), n.name)
	}
	at := func(t *tensor, i int) float32 {
		if len(t.shape) == 0 {
			return t.floats[0]
		}
		return t.floats[i]
	}
	for i := 0; i < out.elements(); i++ {
		if a, b := at(left, i), at(right, i); n.op == "Mul" {
			out.floats = append(out.floats, a*b)
		} else {
			out.floats = append(out.floats, a+b)
		}
	}
	return out, nil
}

// One feature of an example: its type and values.
type feature struct {
	dtype  dataType
	floats []float32
	size   int
}

func (r *run) parse(n *node, output int) (*tensor, *status) {
	// Inputs: serialized, names, a key for each dense feature, a default for each.
	dense := len(n.types)
	if len(n.inputs) != 2+2*dense || len(n.shapes) != dense || output >= dense {
		return nil, fail("UNIMPLEMENTED", "ParseExample with sparse features\n\t [[{{node %s}}]]", n.name)
	}
	serialized, failed := r.compute(n.inputs[0])
	if failed != nil {
		return nil, failed
	}
	if serialized.dtype != dtString {
		return nil, invalid("Expects arg[0] to be string but %v is provided\n\t [[{{node %s}}]]", serialized.dtype, n.name)
	}
	key, failed := r.compute(n.inputs[2+output])
	if failed != nil {
		return nil, failed
	}
	fallback, failed := r.compute(n.inputs[2+dense+output])
	if failed != nil {
		return nil, failed
	}
	want, sizes := 1, []int{}
	for _, d := range n.shapes[output].dims {
		want *= int(d.size)
		sizes = append(sizes, int(d.size))
	}
	name := key.strings[0]
	out := &tensor{dtype: dtFloat, shape: append([]int{len(serialized.strings)}, sizes...)}
	for i, example := range serialized.strings {
		f, err := readFeature([]byte(example), name)
		where := fmt.Sprintf("\n\t [[{{node %s}}]]", n.name)
		problem := fmt.Sprintf("Name: <unknown>, Key: %s, Index: %d.  ", name, i)
		switch {
		case err != nil:
			return nil, invalid("Could not parse example input, value: '%q'%s", example, where)
		case f == nil && len(fallback.floats) == 0:
			return nil, invalid("Name: <unknown>, Feature: %s (data type: float) is required but could not be found.%s", name, where)
		case f == nil:
			for len(out.floats) < (i+1)*want {
				out.floats = append(out.floats, fallback.floats[0])
			}
		case f.dtype != dtFloat:
			return nil, invalid("%sData types don't match. Data type: %v but expected type: float%s", problem, f.dtype, where)
		case f.size != want:
			return nil, invalid("%sNumber of float values != expected.  Values size: %d but output shape: %s%s", problem, f.size, shapeText(sizes), where)
		default:
			out.floats = append(out.floats, f.floats...)
		}
	}
	return out, nil
}

// A feature of a serialized tf.Example; nil where it is not there.
func readFeature(example []byte, name string) (found *feature, err error) {
	err = each(example, func(f field) error {
		return each(f.bytes, func(f field) error {
			key, content, err := entry(f.bytes)
			if err != nil || key != name {
				return err
			}
			return each(content, func(f field) error {
				got := &feature{dtype: map[int]dataType{1: dtString, 2: dtFloat, 3: 9}[f.number]}
				found = got
				return each(f.bytes, func(f field) error {
					if got.dtype == dtFloat {
						for i := 0; i < len(f.bytes)/4; i++ {
							got.floats = append(got.floats, float32At(f.bytes, i))
						}
						got.size = len(got.floats)
					} else {
						got.size++
					}
					return nil
				})
			})
		})
	})
	return found, err
}
