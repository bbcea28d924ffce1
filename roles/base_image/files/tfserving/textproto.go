package main

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// Protocol buffers in their text format, as far as configuration files need it.

type protoText map[string][]interface{} // of strings and nested messages

var token = regexp.MustCompile(`^(?:\s+|#[^\n]*)*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[A-Za-z_][A-Za-z0-9_.]*|-?[0-9][0-9A-Za-z.+-]*|[{}<>\[\]:;,])`)
var blank = regexp.MustCompile(`^(?:\s+|#[^\n]*)*$`)

func parseProtoText(path string) (protoText, *status) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fail("NOT_FOUND", "%s; %v", path, err)
	}
	words, rest := []string{}, string(data)
	for {
		m := token.FindStringSubmatch(rest)
		if m == nil {
			break
		}
		words, rest = append(words, m[1]), rest[len(m[0]):]
	}
	out, left, ok := protoMessage(words, "")
	if !ok || len(left) > 0 || !blank.MatchString(rest) {
		return nil, invalid("Invalid protobuf file: '%s'", path)
	}
	return out, nil
}

func protoMessage(words []string, end string) (protoText, []string, bool) {
	out := protoText{}
	for {
		if len(words) == 0 || words[0] == end {
			if len(words) == 0 {
				return out, nil, end == ""
			}
			return out, words[1:], true
		}
		name := words[0]
		if !regexp.MustCompile(`^[A-Za-z_]`).MatchString(name) || len(words) < 2 {
			return nil, nil, false
		}
		words = words[1:]
		colon := words[0] == ":"
		if colon {
			words = words[1:]
		}
		if len(words) == 0 {
			return nil, nil, false
		}
		list := words[0] == "["
		if list {
			words = words[1:]
		}
		for {
			if len(words) == 0 {
				return nil, nil, false
			}
			if list && words[0] == "]" {
				break
			}
			if words[0] == "{" || words[0] == "<" {
				inner, left, ok := protoMessage(words[1:], map[string]string{"{": "}", "<": ">"}[words[0]])
				if !ok {
					return nil, nil, false
				}
				out[name], words = append(out[name], inner), left
			} else if colon && !strings.ContainsAny(words[0], "{}<>[]:;,") || colon && strings.ContainsAny(words[0][:1], `"'`) {
				text := words[0]
				if strings.ContainsAny(text[:1], `"'`) {
					unquoted, err := strconv.Unquote(`"` + strings.ReplaceAll(strings.ReplaceAll(text[1:len(text)-1], `\'`, `'`), `"`, `\"`) + `"`)
					if err != nil {
						unquoted = text[1 : len(text)-1]
					}
					text = unquoted
				}
				out[name], words = append(out[name], text), words[1:]
			} else {
				return nil, nil, false
			}
			if !list {
				break
			}
			if len(words) > 0 && words[0] == "," {
				words = words[1:]
			}
		}
		if list {
			words = words[1:]
		}
		if len(words) > 0 && (words[0] == ";" || words[0] == ",") {
			words = words[1:]
		}
	}
}

// Refuses what a message of that shape cannot hold. A field's kind is "message", "text", "number" or "bool".
func (p protoText) check(kinds map[string]string) error {
	for name, all := range p {
		kind, known := kinds[name]
		for _, v := range all {
			text, scalar := v.(string)
			_, notNumber := strconv.ParseFloat(text, 64)
			_, notBool := strconv.ParseBool(text)
			if !known || scalar == (kind == "message") || kind == "number" && notNumber != nil || kind == "bool" && notBool != nil {
				return fmt.Errorf("field %s", name)
			}
		}
	}
	return nil
}

func (p protoText) messages(name string) []protoText {
	var found []protoText
	for _, v := range p[name] {
		if inner, is := v.(protoText); is {
			found = append(found, inner)
		}
	}
	return found
}

func (p protoText) text(name string) string {
	for _, v := range p[name] {
		if s, is := v.(string); is {
			return s
		}
	}
	return ""
}
