package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
)

// A SavedModel as the real server reads it: saved_model.pb, and the variables from the checkpoint beside it, checksums verified.

var errWire = errors.New("not a protocol buffer")

// One field of a protocol buffer message: a number, or bytes.
type field struct {
	number int
	value  uint64
	bytes  []byte
}

func fields(data []byte) ([]field, error) {
	var found []field
	for len(data) > 0 {
		tag, n := binary.Uvarint(data)
		if n <= 0 || tag>>3 == 0 {
			return nil, errWire
		}
		f := field{number: int(tag >> 3)}
		data = data[n:]
		switch tag & 7 {
		case 0:
			if f.value, n = binary.Uvarint(data); n <= 0 {
				return nil, errWire
			}
		case 1:
			if n = 8; len(data) < n {
				return nil, errWire
			}
			f.value = binary.LittleEndian.Uint64(data)
		case 2:
			size, head := binary.Uvarint(data)
			if head <= 0 || size > uint64(len(data)-head) {
				return nil, errWire
			}
			n = head + int(size)
			f.bytes = data[head:n]
		case 5:
			if n = 4; len(data) < n {
				return nil, errWire
			}
			f.value = uint64(binary.LittleEndian.Uint32(data))
		default:
			return nil, errWire
		}
		data = data[n:]
		found = append(found, f)
	}
	return found, nil
}

// Calls a function for each field; the first error ends it.
func each(data []byte, visit func(field) error) error {
	found, err := fields(data)
	for i := 0; err == nil && i < len(found); i++ {
		err = visit(found[i])
	}
	return err
}

// An entry of a map: its key, and its value's bytes.
func entry(data []byte) (key string, content []byte, err error) {
	err = each(data, func(f field) error {
		if f.number == 1 {
			key = string(f.bytes)
		} else if f.number == 2 {
			content = f.bytes
		}
		return nil
	})
	return key, content, err
}

type dataType uint64

const (
	dtFloat  dataType = 1
	dtString dataType = 7
)

var dataTypes = []string{"invalid", "float", "double", "int32", "uint8", "int16", "int8", "string", "complex64", "int64", "bool"}

func (d dataType) String() string {
	if int(d) < len(dataTypes) {
		return dataTypes[d]
	}
	return fmt.Sprintf("type %d", uint64(d))
}

type dim struct {
	size int64
	name string
}

type shape struct {
	dims        []dim
	unknownRank bool
}

func readShape(data []byte) (s shape, err error) {
	err = each(data, func(f field) error {
		switch f.number {
		case 2:
			d := dim{}
			if err := each(f.bytes, func(f field) error {
				if f.number == 1 {
					d.size = int64(f.value)
				} else if f.number == 2 {
					d.name = string(f.bytes)
				}
				return nil
			}); err != nil {
				return err
			}
			s.dims = append(s.dims, d)
		case 3:
			s.unknownRank = f.value != 0
		}
		return nil
	})
	return s, err
}

type tensorInfo struct {
	name  string
	dtype dataType
	shape shape
}

type signature struct {
	inputs, outputs map[string]tensorInfo
	method          string
}

type node struct {
	name, op string
	inputs   []string
	shapes   []shape    // of the attribute dense_shapes
	value    *tensor    // of a constant
	types    []dataType // of the attribute Tdense
}

type metaGraph struct {
	tags       []string
	nodes      map[string]*node
	signatures map[string]signature
}

func readInfos(data []byte, into map[string]tensorInfo) error {
	name, content, err := entry(data)
	if err != nil {
		return err
	}
	info := tensorInfo{}
	err = each(content, func(f field) (err error) {
		switch f.number {
		case 1:
			info.name = string(f.bytes)
		case 2:
			info.dtype = dataType(f.value)
		case 3:
			info.shape, err = readShape(f.bytes)
		}
		return err
	})
	into[name] = info
	return err
}

func readSignature(data []byte) (signature, error) {
	s := signature{inputs: map[string]tensorInfo{}, outputs: map[string]tensorInfo{}}
	return s, each(data, func(f field) error {
		switch f.number {
		case 1:
			return readInfos(f.bytes, s.inputs)
		case 2:
			return readInfos(f.bytes, s.outputs)
		case 3:
			s.method = string(f.bytes)
		}
		return nil
	})
}

func readTensor(data []byte) (*tensor, error) {
	t := &tensor{}
	var content []byte
	err := each(data, func(f field) error {
		switch f.number {
		case 1:
			t.dtype = dataType(f.value)
		case 2:
			s, err := readShape(f.bytes)
			for _, d := range s.dims {
				t.shape = append(t.shape, int(d.size))
			}
			return err
		case 4:
			content = f.bytes
		case 5:
			if f.bytes == nil {
				f.bytes = binary.LittleEndian.AppendUint32(nil, uint32(f.value))
			}
			for i := 0; i < len(f.bytes)/4; i++ {
				t.floats = append(t.floats, float32At(f.bytes, i))
			}
		case 7:
			if f.bytes == nil {
				f.bytes = binary.AppendUvarint(nil, f.value)
			}
			for rest := f.bytes; len(rest) > 0; {
				v, n := binary.Uvarint(rest)
				if n <= 0 {
					return errWire
				}
				t.ints, rest = append(t.ints, int(int32(v))), rest[n:]
			}
		case 8:
			t.strings = append(t.strings, string(f.bytes))
		}
		return nil
	})
	if t.dtype == dtFloat {
		for i := 0; i < len(content)/4; i++ {
			t.floats = append(t.floats, float32At(content, i))
		}
		for n := t.elements(); len(t.floats) > 0 && len(t.floats) < n; { // the last value stands for the rest
			t.floats = append(t.floats, t.floats[len(t.floats)-1])
		}
	}
	return t, err
}

func readAttribute(n *node, data []byte) error {
	name, content, err := entry(data)
	if err != nil {
		return err
	}
	return each(content, func(f field) error {
		switch {
		case name == "value" && f.number == 8:
			n.value, err = readTensor(f.bytes)
			return err
		case name == "Tdense" && f.number == 1:
			return each(f.bytes, func(f field) error {
				if f.number == 6 && f.bytes != nil {
					for rest := f.bytes; len(rest) > 0; {
						v, size := binary.Uvarint(rest)
						if size <= 0 {
							return errWire
						}
						n.types, rest = append(n.types, dataType(v)), rest[size:]
					}
				} else if f.number == 6 {
					n.types = append(n.types, dataType(f.value))
				}
				return nil
			})
		case name == "dense_shapes" && f.number == 1:
			return each(f.bytes, func(f field) error {
				if f.number != 7 {
					return nil
				}
				s, err := readShape(f.bytes)
				n.shapes = append(n.shapes, s)
				return err
			})
		}
		return nil
	})
}

func readNode(data []byte) (*node, error) {
	n := &node{}
	return n, each(data, func(f field) error {
		switch f.number {
		case 1:
			n.name = string(f.bytes)
		case 2:
			n.op = string(f.bytes)
		case 3:
			n.inputs = append(n.inputs, string(f.bytes))
		case 5:
			return readAttribute(n, f.bytes)
		}
		return nil
	})
}

func readMetaGraph(data []byte) (*metaGraph, error) {
	g := &metaGraph{nodes: map[string]*node{}, signatures: map[string]signature{}}
	return g, each(data, func(f field) error {
		switch f.number {
		case 1:
			return each(f.bytes, func(f field) error {
				if f.number == 4 {
					g.tags = append(g.tags, string(f.bytes))
				}
				return nil
			})
		case 2:
			return each(f.bytes, func(f field) error {
				if f.number != 1 {
					return nil
				}
				n, err := readNode(f.bytes)
				g.nodes[n.name] = n
				return err
			})
		case 5:
			name, content, err := entry(f.bytes)
			if err != nil {
				return err
			}
			g.signatures[name], err = readSignature(content)
			return err
		}
		return nil
	})
}

// The meta graph of a folder that has the wanted tags.
func readSavedModel(folder, tags string) (*metaGraph, *status) {
	path := filepath.Join(folder, "saved_model.pb")
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		if _, err := os.Stat(path + "txt"); err == nil {
			return nil, fail("UNIMPLEMENTED", "this stand-in reads saved_model.pb only, not %stxt", path)
		}
		return nil, fail("NOT_FOUND", "Could not find SavedModel .pb or .pbtxt at supplied export directory path: %s. "+
			"Check that the directory exists and that you have the right permissions for accessing it.", folder)
	} else if err != nil {
		return nil, fail("PERMISSION_DENIED", "%s; %v", path, errors.Unwrap(err))
	}
	var found *metaGraph
	wanted := strings.Split(tags, ",")
	err = each(data, func(f field) error {
		if f.number != 2 {
			return nil
		}
		g, err := readMetaGraph(f.bytes)
		if err == nil && sameTags(g.tags, wanted) {
			found = g
		}
		return err
	})
	if err != nil || len(data) == 0 {
		return nil, fail("DATA_LOSS", "Can't parse %s as binary proto", path)
	}
	if found == nil {
		return nil, fail("NOT_FOUND", "Could not find meta graph def matching supplied tags: { %s }. To inspect available tag-sets in the "+
			"SavedModel, please use the SavedModel CLI: `saved_model_cli`", strings.Join(wanted, " "))
	}
	return found, nil
}

func sameTags(have, wanted []string) bool {
	set := map[string]bool{}
	for _, tag := range have {
		set[tag] = true
	}
	for _, tag := range wanted {
		if !set[tag] {
			return false
		}
	}
	return len(set) == len(wanted)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// The checksum as LevelDB and the checkpoint store it.
func masked(data ...[]byte) uint32 {
	crc := uint32(0)
	for _, piece := range data {
		crc = crc32.Update(crc, castagnoli, piece)
	}
	return (crc>>15 | crc<<17) + 0xa282ead8
}

// Snappy's format: a length, then literals and copies of what was written before.
func unsnappy(data []byte) ([]byte, error) {
	bad := errors.New("bad snappy data")
	size, n := binary.Uvarint(data)
	if n <= 0 || size > 1<<30 {
		return nil, bad
	}
	out := make([]byte, 0, size)
	for data = data[n:]; len(data) > 0; {
		tag, length, offset, head := data[0], 0, 0, 1
		wide := func(bytes int) (number int) { // little-endian, after the tag
			for i := bytes; i > 0 && i < len(data); i-- {
				number = number<<8 | int(data[i])
			}
			head = 1 + bytes
			return number
		}
		switch length = int(tag>>2) + 1; tag & 3 {
		case 0:
			if length > 60 {
				length = wide(length-60) + 1
			}
			if head+length > len(data) {
				return nil, bad
			}
			out, data = append(out, data[head:head+length]...), data[head+length:]
			continue
		case 1:
			length, offset = int(tag>>2&7)+4, int(tag>>5)<<8|wide(1)
		case 2:
			offset = wide(2)
		case 3:
			offset = wide(4)
		}
		if head > len(data) || offset == 0 || offset > len(out) {
			return nil, bad
		}
		for ; length > 0; length-- {
			out = append(out, out[len(out)-offset])
		}
		data = data[head:]
	}
	if uint64(len(out)) != size {
		return nil, bad
	}
	return out, nil
}

// One block of a LevelDB table: its entries in order.
func block(table []byte, offset, size uint64, visit func(key string, content []byte) error) error {
	if offset+size+5 > uint64(len(table)) || size < 4 {
		return errors.New("a block lies outside the file")
	}
	data, trailer := table[offset:offset+size], table[offset+size:offset+size+5]
	if masked(data, trailer[:1]) != binary.LittleEndian.Uint32(trailer[1:]) {
		return errors.New("block checksum mismatch")
	}
	if trailer[0] == 1 {
		var err error
		if data, err = unsnappy(data); err != nil || len(data) < 4 {
			return errors.New("corrupted compressed block contents")
		}
		size = uint64(len(data))
	}
	restarts := uint64(binary.LittleEndian.Uint32(data[size-4:]))
	if 4*restarts+4 > size {
		return errors.New("bad restart count")
	}
	key := ""
	for data = data[:size-4*restarts-4]; len(data) > 0; {
		var head [3]uint64 // bytes shared with the key before, further bytes of the key, bytes of the value
		for i := range head {
			n := 0
			if head[i], n = binary.Uvarint(data); n <= 0 {
				return errors.New("bad entry")
			}
			data = data[n:]
		}
		if head[0] > uint64(len(key)) || head[1]+head[2] > uint64(len(data)) {
			return errors.New("bad entry")
		}
		key = key[:head[0]] + string(data[:head[1]])
		if err := visit(key, data[head[1]:head[1]+head[2]]); err != nil {
			return err
		}
		data = data[head[1]+head[2]:]
	}
	return nil
}

// The float variables of a checkpoint, by name.
func readVariables(folder string) (map[string]*tensor, *status) {
	variables := map[string]*tensor{}
	index := filepath.Join(folder, "variables", "variables.index")
	table, err := os.ReadFile(index)
	if errors.Is(err, os.ErrNotExist) {
		return variables, nil // as the real one: the model has no variables, and whoever asks for one is told so then
	} else if err != nil {
		return nil, fail("PERMISSION_DENIED", "%s; %v", index, errors.Unwrap(err))
	}
	broken := func(err error) *status { return fail("DATA_LOSS", "Unable to read file (%s): %v", index, err) }
	if len(table) < 48 || binary.LittleEndian.Uint64(table[len(table)-8:]) != 0xdb4775248b80fb57 {
		return nil, broken(errors.New("not an sstable (bad magic number)"))
	}
	var handles [4]uint64
	rest := table[len(table)-48:]
	for i := range handles {
		n := 0
		if handles[i], n = binary.Uvarint(rest); n <= 0 {
			return nil, broken(errors.New("bad block handle"))
		}
		rest = rest[n:]
	}
	shards, shardOf, failed := uint64(1), map[uint64][]byte{}, (*status)(nil)
	err = block(table, handles[2], handles[3], func(_ string, handle []byte) error {
		offset, n := binary.Uvarint(handle)
		if n <= 0 {
			return errors.New("bad block handle")
		}
		size, _ := binary.Uvarint(handle[n:])
		return block(table, offset, size, func(name string, content []byte) error {
			if name == "" {
				return each(content, func(f field) error {
					if f.number == 1 {
						shards = f.value
					}
					return nil
				})
			}
			var t *tensor
			if t, failed = readVariable(folder, name, content, shards, shardOf); failed != nil {
				return failed
			}
			variables[name] = t
			return nil
		})
	})
	if failed != nil {
		return nil, failed
	}
	if err != nil {
		return nil, broken(err)
	}
	return variables, nil
}

func readVariable(folder, name string, content []byte, shards uint64, shardOf map[uint64][]byte) (*tensor, *status) {
	t := &tensor{}
	var shard, offset, size, checksum uint64
	err := each(content, func(f field) error {
		switch f.number {
		case 1:
			t.dtype = dataType(f.value)
		case 2:
			s, err := readShape(f.bytes)
			for _, d := range s.dims {
				t.shape = append(t.shape, int(d.size))
			}
			return err
		case 3:
			shard = f.value
		case 4:
			offset = f.value
		case 5:
			size = f.value
		case 6:
			checksum = f.value
		}
		return nil
	})
	if err != nil {
		return nil, fail("DATA_LOSS", "Entry of %s: %v", name, err)
	}
	path := filepath.Join(folder, "variables", fmt.Sprintf("variables.data-%05d-of-%05d", shard, shards))
	if shardOf[shard] == nil {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fail("NOT_FOUND", "%s; %v", path, errors.Unwrap(err))
		}
		shardOf[shard] = data
	}
	data := shardOf[shard]
	if offset+size > uint64(len(data)) {
		return nil, fail("OUT_OF_RANGE", "Read fewer bytes than requested: %s", path)
	}
	data = data[offset : offset+size]
	if t.dtype != dtFloat {
		return t, nil // kept by name only: what is computed here is float
	}
	if uint64(masked(data)) != checksum {
		return nil, fail("DATA_LOSS", "TensorBundle at %s shard %d (%d bytes): Checksum does not match: stored %d vs. calculated on the restored bytes %d",
			filepath.Join(folder, "variables", "variables"), shard, size, checksum, masked(data))
	}
	for i := 0; i < len(data)/4; i++ {
		t.floats = append(t.floats, float32At(data, i))
	}
	return t, nil
}
