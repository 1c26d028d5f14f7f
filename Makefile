# Thin names for ./start, which does the work.
.PHONY: check test demo lint build bench docs train pin
check: test
test demo lint build bench docs train pin:
	@./start $@
