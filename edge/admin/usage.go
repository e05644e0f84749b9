package admin

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"tollgate/ledger"
	"tollgate/lua"
	"tollgate/quota"
)

// Bounds of reading usage.
const (
	readBatch    = 300             // accounts of one pipeline to Redis
	usageTimeout = 2 * time.Second // all reads of one answer from Redis and SQL; then 503
)

// amounts are what an account says, in credits. used + in_flight + left = total;
// leased is what nodes have set aside, and is part of left.
type amounts struct {
	Total    *int64 `json:"total"` // null: unlimited
	Used     int64  `json:"used"`
	InFlight int64  `json:"in_flight"`
	Leased   int64  `json:"leased"`
	Left     *int64 `json:"left"` // null: unlimited; below 0: more was spent than there was
}

// periodUsage is a day's or a month's account.
type periodUsage struct {
	Period string `json:"period"` // d20261130, m202611: the tenant's calendar
	amounts
	ResetsAt time.Time `json:"resets_at"`
}

// scopeUsage is a scope's `ever` account, and those of its day and month if it has such limits.
type scopeUsage struct {
	ID     string     `json:"id"`
	Name   string     `json:"name"`
	App    string     `json:"app,omitempty"` // of a key
	Status lua.Status `json:"status,omitempty"`
	amounts
	OverageLimit *int64       `json:"overage_limit,omitempty"` // of the org
	Day          *periodUsage `json:"day,omitempty"`
	Month        *periodUsage `json:"month,omitempty"`
}

type usageView struct {
	Tenant string       `json:"tenant"`
	At     time.Time    `json:"at"` // by the store's clock
	Org    scopeUsage   `json:"org"`
	Apps   []scopeUsage `json:"apps"`
	Keys   []scopeUsage `json:"keys"`
	Next   string       `json:"next,omitempty"` // for ?after=: first all apps, then all keys; absent at the end
}

// line is one scope of a report while its accounts are read.
type line struct {
	to     *scopeUsage
	scope  quota.Scope
	budget quota.Budget
	chain  quota.Chain
	states []quota.AccountState
}

func usage(s *Server, r *http.Request) (reply, error) {
	id, err := tenantOf(r)
	if err != nil {
		return reply{}, err
	}
	after, limit, err := page(r)
	if err != nil {
		return reply{}, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), usageTimeout)
	defer cancel()
	t, err := s.opt.DB.GetTenant(ctx, id)
	if err != nil {
		return reply{}, err
	}
	store, zone, err := s.home(&t)
	if err != nil {
		return reply{}, err
	}
	now := store.Now()
	out := usageView{
		Tenant: id, At: time.UnixMilli(now).UTC(), Apps: []scopeUsage{}, Keys: []scopeUsage{},
		Org: scopeUsage{ID: t.ID, Name: t.Name, Status: t.Status, OverageLimit: &t.OverageLimit},
	}
	apps, keys, err := s.scopePage(ctx, id, after, limit, &out)
	if err != nil {
		return reply{}, err
	}
	lines := []line{{to: &out.Org, scope: quota.Org, budget: t.Budget}}
	for i := range apps {
		lines = append(lines, line{to: &out.Apps[i], scope: quota.App, budget: apps[i].Budget})
	}
	for i := range keys {
		lines = append(lines, line{to: &out.Keys[i], scope: quota.Key, budget: keys[i].Budget})
	}
	if err := s.readLines(ctx, store, id, lines, now, zone); err != nil {
		return reply{}, err
	}
	for i := range lines {
		lines[i].tell()
	}
	return reply{status: http.StatusOK, body: out}, nil
}

// scopePage lists apps, then keys, after an id; ids of apps sort before those of keys.
func (s *Server) scopePage(ctx context.Context, tenant, after string, limit int, out *usageView) (apps []ledger.App, keys []ledger.Key, err error) {
	if after < "b" {
		if apps, err = s.opt.DB.ListApps(ctx, tenant, after, limit); err != nil {
			return nil, nil, err
		}
		for i := range apps {
			out.Apps = append(out.Apps, scopeUsage{ID: apps[i].ID, Name: apps[i].Name})
		}
		if len(apps) == limit {
			out.Next = apps[limit-1].ID
			return apps, nil, nil
		}
	}
	limit -= len(apps)
	if keys, err = s.opt.DB.ListKeys(ctx, tenant, after, limit); err != nil {
		return nil, nil, err
	}
	for i := range keys {
		out.Keys = append(out.Keys, scopeUsage{ID: keys[i].ID, Name: keys[i].Name, App: keys[i].App, Status: keys[i].Status})
	}
	out.Next = next(keys, limit, func(k *ledger.Key) string { return k.ID })
	return apps, keys, nil
}

// home gives where a tenant's accounts live, and by which clock its days turn.
func (s *Server) home(t *ledger.Tenant) (*lua.Store, *time.Location, error) {
	store, ok := s.opt.Stores[t.Store]
	if !ok {
		return nil, nil, &Error{
			Status: http.StatusServiceUnavailable, Code: codeStore,
			Message: fmt.Sprintf("The tenant lives in store %q, which this node's configuration does not name.", t.Store),
		}
	}
	zone, err := quota.LoadZone(t.Timezone)
	return store, zone, err
}

// readLines reads the accounts of all lines: from Redis, and those that it does
// not hold from SQL, without bringing them to Redis.
func (s *Server) readLines(ctx context.Context, store *lua.Store, tenant string, lines []line, now int64, zone *time.Location) error {
	var all quota.Chain
	for i := range lines {
		l := &lines[i]
		l.chain = append(l.chain, quota.Account{Scope: l.scope, ID: l.to.ID})
		for _, p := range []struct {
			period quota.Period
			limit  *int64
		}{{quota.Month, l.budget.Month}, {quota.Day, l.budget.Day}} {
			if p.limit != nil {
				l.chain = append(l.chain, quota.Account{Scope: l.scope, ID: l.to.ID, Period: p.period, Window: quota.WindowAt(p.period, now, zone)})
			}
		}
		all = append(all, l.chain...)
	}
	held := make([]*quota.AccountState, 0, len(all))
	for from := 0; from < len(all); from += readBatch {
		states, err := store.ReadAccounts(ctx, tenant, all[from:min(len(all), from+readBatch)])
		if err != nil {
			return err
		}
		held = append(held, states...)
	}
	for i := range lines {
		l := &lines[i]
		mine := held[:len(l.chain)]
		held = held[len(l.chain):]
		var err error
		if l.states, err = s.fill(ctx, tenant, l.chain, mine); err != nil {
			return err
		}
	}
	return nil
}

// fill takes what Redis does not hold from SQL.
func (s *Server) fill(ctx context.Context, tenant string, chain quota.Chain, held []*quota.AccountState) ([]quota.AccountState, error) {
	states := make([]quota.AccountState, len(chain))
	var loads lua.Loads
	for i := range chain {
		if held[i] != nil {
			states[i] = *held[i]
			continue
		}
		if loads.Accounts == nil {
			var err error
			if loads, err = s.opt.DB.LoadAccounts(ctx, tenant, chain); err != nil {
				return nil, err
			}
		}
		a := loads.Accounts[i]
		states[i] = quota.AccountState{Total: a.Total, OverageLimit: a.OverageLimit, Spent: a.Spent}
	}
	return states, nil
}

// accountNow reads one account.
func (s *Server) accountNow(ctx context.Context, tenant string, account quota.Account) (quota.AccountState, error) {
	ctx, cancel := context.WithTimeout(ctx, usageTimeout)
	defer cancel()
	t, err := s.opt.DB.GetTenant(ctx, tenant)
	if err != nil {
		return quota.AccountState{}, err
	}
	store, _, err := s.home(&t)
	if err != nil {
		return quota.AccountState{}, err
	}
	chain := quota.Chain{account}
	held, err := store.ReadAccounts(ctx, tenant, chain)
	if err != nil {
		return quota.AccountState{}, err
	}
	states, err := s.fill(ctx, tenant, chain, held)
	if err != nil {
		return quota.AccountState{}, err
	}
	return states[0], nil
}

// tell writes what was read into the report.
func (l *line) tell() {
	for i, account := range l.chain {
		state := l.states[i]
		a := amounts{Used: state.Spent, InFlight: state.InFlight(), Leased: state.Leased}
		if state.Limited() {
			left := state.Remaining()
			a.Total, a.Left = &state.Total, &left
		}
		if account.Period == quota.Ever {
			l.to.amounts = a
			continue
		}
		p := &periodUsage{Period: account.Window.Name, amounts: a, ResetsAt: time.UnixMilli(account.Window.End).UTC()}
		if account.Period == quota.Day {
			l.to.Day = p
		} else {
			l.to.Month = p
		}
	}
}
