package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// JSON as TensorFlow Serving reads and writes it through RapidJSON: its messages and offsets, NaN and Infinity, what follows the
// document ignored, lists on one line.

type kind int

const (
	null kind = iota
	boolean
	number
	text
	array
	object
)

var kindNames = map[kind]string{null: "Null", number: "Number", text: "String", array: "Array", object: "Object"}

type value struct {
	kind    kind
	truth   bool
	number  float64
	integer bool // written without a fraction or an exponent, and fits
	raw     string
	text    string
	items   []*value
	names   []string
}

func (v *value) typeName() string {
	if v.kind == boolean {
		return map[bool]string{true: "True", false: "False"}[v.truth]
	}
	return kindNames[v.kind]
}

func (v *value) member(name string) *value {
	for i, each := range v.names {
		if each == name {
			return v.items[i]
		}
	}
	return nil
}

type parser struct {
	data []byte
	at   int
}

type parseError struct {
	what string
	at   int
}

func (p *parser) fail(what string, at int) { panic(parseError{what, at}) }

func (p *parser) peek() byte {
	if p.at < len(p.data) {
		return p.data[p.at]
	}
	return 0
}

func (p *parser) space() {
	for p.at < len(p.data) && strings.IndexByte(" \n\r\t", p.data[p.at]) >= 0 {
		p.at++
	}
}

func parseJSON(data []byte) (v *value, failed *status) {
	if len(data) == 0 {
		return nil, invalid("JSON Parse error: The document is empty")
	}
	defer func() {
		if problem := recover(); problem != nil {
			e, ours := problem.(parseError)
			if !ours {
				panic(problem)
			}
			v, failed = nil, invalid("JSON Parse error: %s at offset: %d", e.what, e.at)
		}
	}()
	p := &parser{data: bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))}
	p.space()
	if p.at == len(p.data) {
		p.fail("The document is empty.", p.at)
	}
	v = p.value(0)
	if v.kind != object {
		return nil, invalid("JSON Value: %s Is not object", shown(v))
	}
	return v, nil
}

func (p *parser) value(depth int) *value {
	if depth > 10000 {
		p.fail("Terminate parsing due to Handler error.", p.at)
	}
	switch c := p.peek(); {
	case c == '{':
		return p.object(depth)
	case c == '[':
		return p.array(depth)
	case c == '"':
		return &value{kind: text, text: p.text()}
	case c == '-' || c >= '0' && c <= '9' || c == 'N' || c == 'I':
		return p.number()
	}
	for word, v := range map[string]value{"null": {}, "true": {kind: boolean, truth: true}, "false": {kind: boolean}} {
		if bytes.HasPrefix(p.data[p.at:], []byte(word)) {
			p.at += len(word)
			v := v
			return &v
		}
	}
	p.fail("Invalid value.", p.at)
	return nil
}

func (p *parser) object(depth int) *value {
	v := &value{kind: object}
	p.at++
	p.space()
	if p.peek() == '}' {
		p.at++
		return v
	}
	for {
		if p.peek() != '"' {
			p.fail("Missing a name for object member.", p.at)
		}
		v.names = append(v.names, p.text())
		p.space()
		if p.peek() != ':' {
			p.fail("Missing a colon after a name of object member.", p.at)
		}
		p.at++
		p.space()
		v.items = append(v.items, p.value(depth+1))
		p.space()
		switch p.peek() {
		case ',':
			p.at++
			p.space()
		case '}':
			p.at++
			return v
		default:
			p.fail("Missing a comma or } after an object member.", p.at)
		}
	}
}

func (p *parser) array(depth int) *value {
	v := &value{kind: array}
	p.at++
	p.space()
	if p.peek() == ']' {
		p.at++
		return v
	}
	for {
		v.items = append(v.items, p.value(depth+1))
		p.space()
		switch p.peek() {
		case ',':
			p.at++
			p.space()
		case ']':
			p.at++
			return v
		default:
			p.fail("Missing a comma or ] after an array element.", p.at)
		}
	}
}

func (p *parser) hex(start int) rune {
	if p.at+4 > len(p.data) {
		p.fail("Incorrect hex digit after \\u escape in string.", start)
	}
	code, err := strconv.ParseUint(string(p.data[p.at:p.at+4]), 16, 16)
	if err != nil {
		p.fail("Incorrect hex digit after \\u escape in string.", start)
	}
	p.at += 4
	return rune(code)
}

func (p *parser) text() string {
	start := p.at
	p.at++
	var out strings.Builder
	for {
		if p.at >= len(p.data) {
			p.fail("Missing a closing quotation mark in string.", start)
		}
		c := p.data[p.at]
		switch {
		case c == '"':
			p.at++
			return out.String()
		case c == '\\':
			escape := p.at
			p.at++
			e := p.peek()
			p.at++
			if i := strings.IndexByte(`"\/bfnrt`, e); i >= 0 && e != 0 {
				out.WriteByte("\"\\/\b\f\n\r\t"[i])
			} else if e == 'u' {
				r := p.hex(escape)
				if utf16.IsSurrogate(r) {
					if p.peek() != '\\' || p.at+1 >= len(p.data) || p.data[p.at+1] != 'u' {
						p.fail("The surrogate pair in string is invalid.", escape)
					}
					p.at += 2
					if r = utf16.DecodeRune(r, p.hex(escape)); r == utf8.RuneError {
						p.fail("The surrogate pair in string is invalid.", escape)
					}
				}
				out.WriteRune(r)
			} else {
				p.fail("Invalid escape character in string.", escape)
			}
		case c < 0x20:
			p.fail("Invalid encoding in string.", p.at)
		default:
			out.WriteByte(c)
			p.at++
		}
	}
}

func (p *parser) digits() bool {
	start := p.at
	for p.peek() >= '0' && p.peek() <= '9' {
		p.at++
	}
	return p.at > start
}

func (p *parser) number() *value {
	start := p.at
	if p.peek() == '-' {
		p.at++
	}
	for _, word := range []string{"NaN", "Infinity", "Inf"} {
		if bytes.HasPrefix(p.data[p.at:], []byte(word)) {
			p.at += len(word)
			v := math.NaN()
			if word != "NaN" {
				v = math.Inf(map[bool]int{true: -1, false: 1}[p.data[start] == '-'])
			}
			return &value{kind: number, number: v, raw: string(p.data[start:p.at])}
		}
	}
	integer := true
	if p.peek() == '0' {
		p.at++
	} else if !p.digits() {
		p.fail("Invalid value.", p.at)
	}
	if p.peek() == '.' {
		integer = false
		p.at++
		if !p.digits() {
			p.fail("Miss fraction part in number.", p.at)
		}
	}
	if c := p.peek(); c == 'e' || c == 'E' {
		integer = false
		p.at++
		if c := p.peek(); c == '+' || c == '-' {
			p.at++
		}
		if !p.digits() {
			p.fail("Miss exponent in number.", p.at)
		}
	}
	raw := string(p.data[start:p.at])
	v, err := strconv.ParseFloat(raw, 64)
	if err != nil {
		p.fail("Number too big to be stored in double.", start)
	}
	if _, err := strconv.ParseInt(raw, 10, 64); err != nil {
		integer = false
	}
	return &value{kind: number, number: v, integer: integer, raw: raw}
}

// A value as it appears in messages, cut after 256 characters.
func shown(v *value) string {
	w := &writer{singleLine: true, limit: 256}
	w.value(v)
	return w.String()
}

// RapidJSON's PrettyWriter.
type writer struct {
	bytes.Buffer
	singleLine bool
	limit      int
	levels     []level
}

type level struct {
	inArray bool
	count   int
}

func (w *writer) full() bool { return w.limit > 0 && w.Len() >= w.limit }

func (w *writer) indent() { w.WriteString("\n" + strings.Repeat("    ", len(w.levels))) }

func (w *writer) prefix() {
	if len(w.levels) == 0 {
		return
	}
	top := &w.levels[len(w.levels)-1]
	if top.inArray {
		if top.count > 0 {
			w.WriteByte(',')
			if w.singleLine {
				w.WriteByte(' ')
			}
		}
		if !w.singleLine {
			w.indent()
		}
	} else if top.count%2 == 1 {
		w.WriteString(": ")
	} else {
		if top.count > 0 {
			w.WriteByte(',')
		}
		w.indent()
	}
	top.count++
}

func (w *writer) open(inArray bool) {
	w.prefix()
	w.levels = append(w.levels, level{inArray: inArray})
	w.WriteByte("{["[map[bool]int{true: 1}[inArray]])
}

func (w *writer) close() {
	top := w.levels[len(w.levels)-1]
	w.levels = w.levels[:len(w.levels)-1]
	if top.count > 0 && !(top.inArray && w.singleLine) {
		w.indent()
	}
	w.WriteByte("}]"[map[bool]int{true: 1}[top.inArray]])
}

func (w *writer) raw(s string) {
	w.prefix()
	w.WriteString(s)
}

func (w *writer) str(s string) {
	w.prefix()
	w.WriteByte('"')
	for _, c := range []byte(s) {
		switch {
		case c == '"' || c == '\\':
			w.WriteByte('\\')
			w.WriteByte(c)
		case c < 0x20:
			if i := strings.IndexByte("\b\f\n\r\t", c); i >= 0 {
				w.WriteString(`\` + "bfnrt"[i:i+1])
			} else {
				fmt.Fprintf(w, `\u%04X`, c)
			}
		default:
			w.WriteByte(c)
		}
	}
	w.WriteByte('"')
}

func (w *writer) value(v *value) bool {
	if w.full() {
		return false
	}
	switch v.kind {
	case null:
		w.raw("null")
	case boolean:
		w.raw(strconv.FormatBool(v.truth))
	case number:
		w.raw(v.raw)
	case text:
		w.str(v.text)
	default:
		w.open(v.kind == array)
		for i, item := range v.items {
			if v.kind == object {
				if w.full() {
					return false
				}
				w.str(v.names[i])
			}
			if !w.value(item) {
				return false
			}
		}
		if w.full() {
			return false
		}
		w.close()
	}
	return true
}

// A float32 in the shortest of six digits or as many as are needed, always with a point or an exponent.
func decimal(f float32) string {
	switch wide := float64(f); {
	case math.IsNaN(wide):
		return "NaN"
	case math.IsInf(wide, 1):
		return "Infinity"
	case math.IsInf(wide, -1):
		return "-Infinity"
	}
	s := general(f, 6)
	if back, _ := strconv.ParseFloat(s, 32); float32(back) != f {
		s = general(f, 9)
	}
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return s
}

// C's %.*g.
func general(f float32, digits int) string {
	s := strconv.FormatFloat(float64(f), 'e', digits-1, 64)
	exponent, _ := strconv.Atoi(s[strings.IndexByte(s, 'e')+1:])
	if exponent < -4 || exponent >= digits {
		mantissa := s[:strings.IndexByte(s, 'e')]
		if strings.Contains(mantissa, ".") {
			mantissa = strings.TrimRight(strings.TrimRight(mantissa, "0"), ".")
		}
		return fmt.Sprintf("%se%+03d", mantissa, exponent)
	}
	s = strconv.FormatFloat(float64(f), 'f', digits-1-exponent, 64)
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s
}

func float32At(b []byte, i int) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
}
