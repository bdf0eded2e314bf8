// Checks a history of a queue with Porcupine.
//
//	histories FILE [SECONDS [MODEL...]]
//
// FILE has one JSON object a line, in Jepsen's form: process, type (invoke, ok, fail, info), f, value and time. An
// operation without an answer ends with info, and may have taken effect at any later time or never. Operations:
//
//	publish  value {message, key}      stores the message, once, however often it is published
//	deliver  value {message, key, id}  a consumer got it; id is the queue's id of the message
//	ack      value {message, key}      settles it
//	drained  value {message, key}      at the end: the queue has nothing left
//
// The models: once: each message is stored once, is delivered only while it is stored, and never after its ack;
// in-order: the messages of each key are delivered one at a time in the order in which they were published; kept: a
// message that was stored is delivered until its ack, perhaps more often, which is what an engine promises that may
// store it twice. Without names these are once and in-order. The exit code is 0 if the history is possible under all of
// them, 1 if not, 2 if it cannot be read.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

type value struct {
	Message string `json:"message"`
	Key     string `json:"key"`
	ID      string `json:"id"`
}

type event struct {
	Process int    `json:"process"`
	Type    string `json:"type"`
	F       string `json:"f"`
	Value   value  `json:"value"`
	Time    int64  `json:"time"`
}

type operation struct {
	f     string
	value value
}

// message is the state of one message.
type message struct {
	isStored, isAcked bool
	id                string
}

const never = int64(1) << 62

func read(path string) ([]porcupine.Operation, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	begun := map[int]event{}
	var history []porcupine.Operation
	add := func(first event, last event, end int64) {
		history = append(history, porcupine.Operation{
			ClientId: first.Process, Input: operation{first.F, last.Value}, Call: first.Time, Return: end,
		})
	}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, err
		}
		first, found := begun[e.Process]
		switch {
		case e.Type == "invoke" && !found:
			begun[e.Process] = e
			continue
		case e.Type == "invoke" || !found:
			return nil, fmt.Errorf("process %d: %s out of turn", e.Process, e.Type)
		case e.Type == "ok":
			add(first, e, e.Time)
		case e.Type == "info":
			add(first, first, never)
		case e.Type != "fail": // what failed has changed nothing
			return nil, fmt.Errorf("unknown type %q", e.Type)
		}
		delete(begun, e.Process)
	}
	for _, first := range begun {
		add(first, first, never)
	}
	return history, lines.Err()
}

func by(name func(operation) string) func([]porcupine.Operation) [][]porcupine.Operation {
	return func(history []porcupine.Operation) [][]porcupine.Operation {
		parts := map[string][]porcupine.Operation{}
		for _, each := range history {
			part := name(each.Input.(operation))
			parts[part] = append(parts[part], each)
		}
		names := make([]string, 0, len(parts))
		for part := range parts {
			names = append(names, part)
		}
		sort.Strings(names)
		result := make([][]porcupine.Operation, 0, len(parts))
		for _, part := range names {
			result = append(result, parts[part])
		}
		return result
	}
}

// once: a message is stored once, delivered only while it is stored, and is there until its ack.
var once = porcupine.Model{
	Partition: by(func(o operation) string { return o.value.Message }),
	Init:      func() interface{} { return message{} },
	Step: func(state, input, _ interface{}) (bool, interface{}) {
		m, o := state.(message), input.(operation)
		switch o.f {
		case "publish":
			m.isStored = true // a repeat changes nothing
			return true, m
		case "deliver":
			isPossible := m.isStored && !m.isAcked && (m.id == "" || m.id == o.value.ID)
			m.id = o.value.ID
			return isPossible, m
		case "ack":
			isPossible := m.isStored && m.id != ""
			m.isAcked = true
			return isPossible, m
		default:
			return !m.isStored || m.isAcked, m
		}
	},
	DescribeOperation: describe,
}

// kept: a message is delivered only after its publish, and at the end each stored message has been acked.
var kept = porcupine.Model{
	Partition: once.Partition,
	Init:      once.Init,
	Step: func(state, input, _ interface{}) (bool, interface{}) {
		m, o := state.(message), input.(operation)
		switch o.f {
		case "publish":
			m.isStored = true
			return true, m
		case "deliver":
			return m.isStored, m
		case "ack":
			m.isAcked = true
			return m.isStored, m
		default:
			return !m.isStored || m.isAcked, m
		}
	},
	DescribeOperation: describe,
}

// merged returns a history in which each message is published and acked at most once. Repeats of a publish are one
// operation, from the first call to the first answer. An ack that was not answered and was followed by one that was
// confirmed had no effect, because only a message that is still there can be settled.
func merged(history []porcupine.Operation) []porcupine.Operation {
	at := map[operation]int{}
	var result []porcupine.Operation
	for _, each := range history {
		o := each.Input.(operation)
		if o.f != "publish" && o.f != "ack" {
			result = append(result, each)
			continue
		}
		index, found := at[o]
		if !found {
			at[o] = len(result)
			result = append(result, each)
			continue
		}
		one := &result[index]
		switch {
		case o.f == "publish":
			if each.Call < one.Call {
				one.Call = each.Call
			}
			if each.Return < one.Return {
				one.Return = each.Return
			}
		case each.Return < one.Return, one.Return == never && each.Call > one.Call:
			*one = each
		}
	}
	return result
}

// inOrder: the messages of a key are a queue. The state is their names in order, and behind "|" those that are gone.
var inOrder = porcupine.Model{
	Partition: by(func(o operation) string { return o.value.Key }),
	Init:      func() interface{} { return "|" },
	Step: func(state, input, _ interface{}) (bool, interface{}) {
		text, o := state.(string), input.(operation)
		waiting, gone, _ := strings.Cut(text, "|")
		name := o.value.Message + " "
		switch o.f {
		case "publish":
			if strings.Contains(" "+waiting, " "+name) || strings.Contains(" "+gone, " "+name) {
				return true, text
			}
			return true, waiting + name + "|" + gone
		case "deliver":
			return strings.HasPrefix(waiting, name), text
		case "ack":
			if strings.Contains(" "+gone, " "+name) {
				return true, text
			}
			return strings.HasPrefix(waiting, name), strings.TrimPrefix(waiting, name) + "|" + gone + name
		default:
			return true, text
		}
	},
	DescribeOperation: describe,
}

func describe(input, _ interface{}) string {
	o := input.(operation)
	return fmt.Sprintf("%s %s %s %s", o.f, o.value.Key, o.value.Message, o.value.ID)
}

// culprits returns the parts of a history that are impossible, as far as they are found in the time.
func culprits(
	model porcupine.Model, simplify func([]porcupine.Operation) []porcupine.Operation,
	history []porcupine.Operation, limit time.Duration,
) (int, []string) {
	var found []string
	unknown := 0
	single := model
	single.Partition = nil
	for _, part := range model.Partition(history) {
		switch porcupine.CheckOperationsTimeout(single, simplify(part), limit) {
		case porcupine.Illegal:
			lines := []string{}
			sort.Slice(part, func(i, j int) bool { return part[i].Call < part[j].Call })
			for _, each := range part {
				lines = append(lines, fmt.Sprintf("    %d-%d %s", each.Call, each.Return, describe(each.Input, nil)))
			}
			found = append(found, strings.Join(lines, "\n"))
		case porcupine.Unknown:
			unknown++
		}
	}
	return unknown, found
}

func asItIs(all []porcupine.Operation) []porcupine.Operation { return all }

var models = map[string]struct {
	model    porcupine.Model
	simplify func([]porcupine.Operation) []porcupine.Operation
}{"once": {once, asItIs}, "in-order": {inOrder, merged}, "kept": {kept, asItIs}}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: histories FILE [SECONDS]")
		os.Exit(2)
	}
	seconds := 60
	if len(os.Args) > 2 {
		seconds, _ = strconv.Atoi(os.Args[2])
	}
	history, err := read(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	code := 0
	names := []string{"once", "in-order"}
	if len(os.Args) > 3 {
		names = os.Args[3:]
	}
	for _, name := range names {
		each, found := models[name]
		if !found {
			fmt.Fprintln(os.Stderr, "no such model:", name)
			os.Exit(2)
		}
		unknown, impossible := culprits(each.model, each.simplify, history, time.Duration(seconds)*time.Second)
		fmt.Printf("%s: %d operations, %d impossible, %d undecided\n", name, len(history), len(impossible), unknown)
		if len(impossible) > 0 {
			fmt.Println(impossible[0])
		}
		if len(impossible) > 0 {
			code = 1
		} else if unknown > 0 && code == 0 {
			code = 3
		}
	}
	os.Exit(code)
}
