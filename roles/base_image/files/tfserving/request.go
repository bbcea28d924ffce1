package main

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"sort"
	"strings"
)

// The REST interface's requests and answers, as tensorflow_serving/util/json_tensor.cc has them.

const defaultSignature = "serving_default"

func typeError(v *value, d dataType) *status {
	return invalid("JSON Value: %s Type: %s is not of expected type: %v", shown(v), v.typeName(), d)
}

func isBase64(v *value) bool {
	return v.kind == object && len(v.names) == 1 && v.names[0] == "b64" && v.items[0].kind == text
}

func decodeBase64(v *value) (string, *status) {
	if !isBase64(v) {
		return "", invalid("JSON Value: %s not formatted correctly for base64 data", shown(v))
	}
	data, err := base64.StdEncoding.DecodeString(v.items[0].text)
	if err != nil {
		if data, err = base64.RawStdEncoding.DecodeString(v.items[0].text); err != nil {
			return "", invalid("Unable to base64 decode")
		}
	}
	return string(data), nil
}

func denseShape(v *value) []int {
	sizes := []int{}
	for v.kind == array {
		sizes = append(sizes, len(v.items))
		if len(v.items) == 0 {
			break
		}
		v = v.items[0]
	}
	return sizes
}

// Puts a value's leaves into a tensor whose shape is known.
func fill(v *value, depth int, t *tensor) *status {
	rank := len(t.shape)
	if v.kind == array {
		if depth >= rank {
			return invalid("Encountered list at unexpected level: %d expected < %d", depth, rank)
		}
		if len(v.items) != t.shape[depth] {
			return invalid("Encountered list at unexpected size: %d at level: %d expected size: %d", len(v.items), depth, t.shape[depth])
		}
		for _, item := range v.items {
			if failed := fill(item, depth+1, t); failed != nil {
				return failed
			}
		}
		return nil
	}
	if depth != rank {
		return invalid("JSON Value: %s found at incorrect level: %d in the JSON DOM. Expected at level: %d", shown(v), depth+1, rank)
	}
	switch {
	case t.dtype == dtString && v.kind == object:
		decoded, failed := decodeBase64(v)
		t.strings = append(t.strings, decoded)
		return failed
	case t.dtype == dtString && v.kind == text:
		t.strings = append(t.strings, v.text)
	case t.dtype == dtFloat && v.kind == number:
		t.floats = append(t.floats, float32(v.number))
	case t.dtype != dtFloat && t.dtype != dtString:
		return fail("UNIMPLEMENTED", "Conversion of JSON Value: %s to type: %v", shown(v), t.dtype)
	default:
		return typeError(v, t.dtype)
	}
	return nil
}

// One element of "instances" for one input; all must have the shape of the first.
func addInstance(v *value, name string, inputs map[string]tensorInfo, tensors map[string]*tensor) *status {
	info, known := inputs[name]
	if !known {
		return invalid("JSON object: does not have named input: %s", name)
	}
	one := &tensor{dtype: info.dtype, shape: denseShape(v)}
	if failed := fill(v, 0, one); failed != nil {
		return failed
	}
	all := tensors[name]
	if all == nil {
		tensors[name] = one
		return nil
	}
	if one.elements() != all.elements() {
		return invalid("Expecting tensor size: %d but got: %d", all.elements(), one.elements())
	}
	if shapeText(one.shape) != shapeText(all.shape) {
		return invalid("Expecting shape %s but got: %s", shapeText(all.shape), shapeText(one.shape))
	}
	all.floats, all.strings = append(all.floats, one.floats...), append(all.strings, one.strings...)
	return nil
}

func sortedNames(infos map[string]tensorInfo) []string {
	names := make([]string, 0, len(infos))
	for name := range infos {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

func fromInstances(list []*value, inputs map[string]tensorInfo) (map[string]*tensor, *status) {
	names := sortedNames(inputs)
	if list[0].kind != object && len(names) > 1 {
		return nil, invalid("instances is a plain list, but expecting list of objects as multiple input tensors required as per tensorinfo_map")
	}
	named := func(v *value) bool { return v.kind == object && !isBase64(v) }
	objects, tensors := named(list[0]), map[string]*tensor{}
	for i, item := range list {
		if objects != named(item) {
			if objects {
				return nil, invalid("Expecting object but got list at item %d of input list", i)
			}
			return nil, invalid("Expecting value/list but got object at item %d of input list", i)
		}
		if !objects {
			if failed := addInstance(item, names[0], inputs, tensors); failed != nil {
				return nil, invalid("Failed to process element: %d of 'instances' list. Error: %v", i, failed)
			}
			continue
		}
		keys := map[string]tensorInfo{}
		for j, name := range item.names {
			keys[name] = tensorInfo{}
			if failed := addInstance(item.items[j], name, inputs, tensors); failed != nil {
				return nil, invalid("Failed to process element: %d key: %s of 'instances' list. Error: %v", i, name, failed)
			}
		}
		if strings.Join(sortedNames(keys), ",") != strings.Join(names, ",") {
			return nil, invalid("Failed to process element: %d of 'instances' list. JSON object: %s keys must be equal to: %s",
				i, shown(item), strings.Join(names, ","))
		}
	}
	for _, t := range tensors {
		t.shape = append([]int{len(list)}, t.shape...)
	}
	return tensors, nil
}

func fromInputs(v *value, inputs map[string]tensorInfo) (map[string]*tensor, *status) {
	names, tensors := sortedNames(inputs), map[string]*tensor{}
	if v.kind != object || isBase64(v) {
		if len(names) > 1 {
			return nil, invalid("inputs is a plain value/list, but expecting an object as multiple input tensors required as per tensorinfo_map")
		}
		v = &value{kind: object, names: names, items: []*value{v}}
	}
	for _, name := range names {
		item := v.member(name)
		if item == nil {
			return nil, invalid("Missing named input: %s in 'inputs' object.", name)
		}
		t := &tensor{dtype: inputs[name].dtype, shape: denseShape(item)}
		if failed := fill(item, 0, t); failed != nil {
			return nil, failed
		}
		tensors[name] = t
	}
	return tensors, nil
}

func signatureName(doc *value) (string, *status) {
	v := doc.member("signature_name")
	if v == nil || v.kind == text && v.text == "" {
		return defaultSignature, nil
	}
	if v.kind != text {
		return "", invalid("JSON Value: %s not formatted correctly. 'signature_name' key must be a string value.", shown(doc))
	}
	return v.text, nil
}

func (m *model) predict(body []byte) (string, *status) {
	doc, failed := parseJSON(body)
	if failed != nil {
		return "", failed
	}
	name, failed := signatureName(doc)
	if failed != nil {
		return "", failed
	}
	sig, known := m.graph.signatures[name]
	if !known {
		return "", invalid("Serving signature name: \"%s\" not found in signature def", name)
	}
	instances, inputs := doc.member("instances"), doc.member("inputs")
	var tensors map[string]*tensor
	switch {
	case instances != nil && inputs != nil:
		return "", invalid("JSON Value: %s Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist ", shown(doc))
	case instances == nil && inputs == nil:
		return "", invalid("Missing 'inputs' or 'instances' key")
	case instances != nil && instances.kind != array:
		return "", invalid("JSON Value: %s Expecting 'instances' to be an list/array", shown(doc))
	case instances != nil && len(instances.items) == 0:
		return "", invalid("JSON Value: %s No values in 'instances' array", shown(doc))
	case instances != nil:
		tensors, failed = fromInstances(instances.items, sig.inputs)
	default:
		tensors, failed = fromInputs(inputs, sig.inputs)
	}
	if failed != nil {
		return "", failed
	}
	feeds := map[string]*tensor{}
	for alias, t := range tensors {
		feeds[sig.inputs[alias].name] = t
	}
	results, failed := m.run(sig, feeds)
	if failed != nil {
		return "", failed
	}
	if instances != nil {
		return rows(results)
	}
	return columns(results), nil
}

func (m *model) run(sig signature, feeds map[string]*tensor) (map[string]*tensor, *status) {
	r, results := run{m.graph, m.variables, feeds}, map[string]*tensor{}
	for alias, info := range sig.outputs {
		t, failed := r.compute(info.name)
		if failed != nil {
			return nil, failed
		}
		results[alias] = t
	}
	return results, nil
}

func aliases(results map[string]*tensor) []string {
	names := make([]string, 0, len(results))
	for name := range results {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

func writeValues(w *writer, t *tensor, depth int, offset *int) {
	if depth >= len(t.shape) {
		w.raw(decimal(t.floats[*offset]))
		*offset++
		return
	}
	w.open(true)
	for i := 0; i < t.shape[depth]; i++ {
		writeValues(w, t, depth+1, offset)
	}
	w.close()
}

func rows(results map[string]*tensor) (string, *status) {
	names, batch, offsets := aliases(results), -1, map[string]*int{}
	for _, name := range names {
		t := results[name]
		if len(t.shape) == 0 {
			return "", invalid("Tensor name: %s has no shape information ", name)
		}
		if batch >= 0 && batch != t.shape[0] {
			return "", invalid("Tensor name: %s has inconsistent batch size: %d expecting: %d", name, t.shape[0], batch)
		}
		batch, offsets[name] = t.shape[0], new(int)
	}
	w := &writer{}
	w.open(false)
	w.str("predictions")
	w.open(true)
	for i := 0; i < batch; i++ {
		if len(names) > 1 {
			w.open(false)
		}
		w.singleLine = true
		for _, name := range names {
			if len(names) > 1 {
				w.str(name)
			}
			writeValues(w, results[name], 1, offsets[name])
		}
		w.singleLine = false
		if len(names) > 1 {
			w.close()
		}
	}
	w.close()
	w.close()
	return w.String(), nil
}

func columns(results map[string]*tensor) string {
	w, names := &writer{}, aliases(results)
	w.open(false)
	w.str("outputs")
	if len(names) > 1 {
		w.open(false)
	}
	for _, name := range names {
		if len(names) > 1 {
			w.str(name)
		}
		writeValues(w, results[name], 0, new(int))
	}
	if len(names) > 1 {
		w.close()
	}
	w.close()
	return w.String()
}

// A tag and length-delimited bytes, as protocol buffers have them.
func message(number int, content []byte) []byte {
	out := binary.AppendUvarint(nil, uint64(number)<<3|2)
	return append(binary.AppendUvarint(out, uint64(len(content))), content...)
}

// A JSON object as a serialized tf.Example.
func example(v *value, into map[string][]byte) *status {
	if v.kind != object {
		return invalid("Example must be JSON object but got JSON %s", v.typeName())
	}
	for i, name := range v.names {
		list := []*value{v.items[i]}
		if v.items[i].kind == array {
			list = v.items[i].items
		}
		kind, content := 0, []byte{}
		for _, item := range list {
			this := 0
			switch {
			case item.kind == number && !item.integer:
				this = 2
				content = binary.LittleEndian.AppendUint32(content, math.Float32bits(float32(item.number)))
			case item.kind == number:
				this = 3
				content = binary.AppendUvarint(content, uint64(int64(item.number)))
			case item.kind == boolean:
				this = 3
				content = binary.AppendUvarint(content, map[bool]uint64{true: 1}[item.truth])
			case item.kind == text:
				this = 1
				content = append(content, message(1, []byte(item.text))...)
			case isBase64(item):
				this = 1
				decoded, failed := decodeBase64(item)
				if failed != nil {
					return failed
				}
				content = append(content, message(1, []byte(decoded))...)
			default:
				return invalid("Feature: %s has element with unexpected JSON type: %s", name, item.typeName())
			}
			if kind != 0 && kind != this {
				return invalid("Unexpected element type in feature: %s expecting type: %s", name, map[int]string{1: "bytes", 2: "float", 3: "int64"}[kind])
			}
			kind = this
		}
		if kind != 1 {
			content = message(1, content)
		}
		if kind != 0 {
			content = message(kind, content)
		}
		into[name] = append(message(1, []byte(name)), message(2, content)...)
	}
	return nil
}

// Runs the examples of a :classify or :regress request through a signature of that method.
func (m *model) examples(body []byte, method, input, output string) (*tensor, *status) {
	doc, failed := parseJSON(body)
	if failed != nil {
		return nil, failed
	}
	name, failed := signatureName(doc)
	if failed != nil {
		return nil, failed
	}
	common := map[string][]byte{}
	if context := doc.member("context"); context != nil {
		if failed := example(context, common); failed != nil {
			return nil, failed
		}
	}
	list := doc.member("examples")
	switch {
	case list == nil:
		return nil, invalid("JSON Value: %s When method is classify, key 'examples' is expected and was not found", shown(doc))
	case list.kind != array:
		return nil, invalid("JSON Value: %s Expecting 'examples' value to be an list/array", shown(doc))
	case len(list.items) == 0:
		return nil, invalid("JSON Value: %s 'examples' value is an empty array", shown(doc))
	}
	serialized := &tensor{dtype: dtString, shape: []int{len(list.items)}}
	for _, item := range list.items {
		features, all := map[string][]byte{}, []byte{}
		for name, content := range common {
			features[name] = content
		}
		if failed := example(item, features); failed != nil {
			return nil, failed
		}
		for _, content := range features {
			all = append(all, message(1, content)...)
		}
		serialized.strings = append(serialized.strings, string(message(1, all)))
	}
	sig, known := m.graph.signatures[name]
	if !known {
		return nil, invalid("No signature was found with the name: %s", name)
	}
	what := map[string]string{"classify": "classification", "regress": "regression"}[method]
	if wanted := "tensorflow/serving/" + method; sig.method != wanted {
		return nil, invalid("Expected %s signature method_name to be %s. Was: %s", what, wanted, sig.method)
	}
	feed, known := sig.inputs[input]
	if _, there := sig.outputs[output]; !known || !there {
		return nil, invalid("No %s inputs found in SignatureDef: %s", what, name)
	}
	results, failed := m.run(sig, map[string]*tensor{feed.name: serialized})
	if failed != nil {
		return nil, failed
	}
	return results[output], nil
}

func (m *model) classify(body []byte) (string, *status) {
	scores, failed := m.examples(body, "classify", "inputs", "scores")
	if failed != nil {
		return "", failed
	}
	if len(scores.shape) != 2 {
		return "", invalid("Expected Tensor shape: [batch_size num_classes] but got %s", shapeText(scores.shape))
	}
	w, offset := &writer{}, 0
	w.open(false)
	w.str("results")
	w.open(true)
	for i := 0; i < scores.shape[0]; i++ {
		w.singleLine = true
		w.open(true)
		for c := 0; c < scores.shape[1]; c++ {
			w.open(true)
			w.str("")
			w.raw(decimal(scores.floats[offset]))
			w.close()
			offset++
		}
		w.close()
		w.singleLine = false
	}
	w.close()
	w.close()
	return w.String(), nil
}

func (m *model) regress(body []byte) (string, *status) {
	values, failed := m.examples(body, "regress", "inputs", "outputs")
	if failed != nil {
		return "", failed
	}
	w := &writer{}
	w.open(false)
	w.str("results")
	w.singleLine = true
	w.open(true)
	for _, f := range values.floats {
		w.raw(decimal(f))
	}
	w.close()
	w.close()
	return w.String(), nil
}
